#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/hot_parts.h"
#include "kernels/cuda/launch.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kForgetThreads = 256, kLookUpThreads = 256, kAdmitThreads = 256;
constexpr uint32_t kCopyWarps = 8, kCopyBlocks = 16;
constexpr uint32_t kAges = 64;  // steps since a slot was needed; the oldest are one age

// The entry of a part in HotParts::slots; null where the frame is none of the host's.
__device__ uint32_t* slot_of(const HotParts& hot, uint32_t frame, uint32_t head) {
  const uint32_t index = frame - hot.first_host;
  return index < hot.host_frames ? hot.slots + size_t{index} * hot.n_kv_head + head : nullptr;
}

__device__ size_t first_slot_of(const HotParts& hot, uint32_t layer, uint32_t head) {
  return (size_t{layer} * hot.n_kv_head + head) * hot.layer_slots;
}

// Another stream may be giving the slot away: only what still belongs together is parted.
__device__ void forget(const HotParts& hot, uint32_t frame, uint32_t head) {
  uint32_t* entry = slot_of(hot, frame, head);
  if (entry == nullptr || *entry == kNoSlot) return;
  const uint32_t slot = atomicExch(entry, kNoSlot);
  if (slot >= kSlotToCome) return;
  const uint32_t index = slot - hot.first_slot;
  const size_t first = first_slot_of(hot, index / hot.layer_slots, head);
  atomicCAS(hot.held + first + index % hot.layer_slots, frame, kNoSlot);
}

__global__ __launch_bounds__(kForgetThreads) void begin_kernel(
    const __grid_constant__ HotParts hot, const __grid_constant__ StoredRows a) {
  allow_next_kernel();
  wait_for_kernels_before();
  const size_t unit = size_t{blockIdx.x} * kForgetThreads + threadIdx.x;
  if (unit == 0) ++*hot.step;
  const auto head = static_cast<uint32_t>(unit % hot.n_kv_head);
  const size_t row = unit / hot.n_kv_head % a.rows, layer = unit / hot.n_kv_head / a.rows;
  if (layer >= hot.n_layer || a.positions[row] < 0) return;
  const uint32_t page = static_cast<uint32_t>(a.positions[row]) / kPageTokens;
  if (page >= a.capacity) return;
  forget(hot, a.tables[(layer * a.table_rows + a.sequences[row]) * a.capacity + page], head);
}

__global__ __launch_bounds__(kForgetThreads) void forget_kernel(
    const __grid_constant__ HotParts hot, PageIds pages) {
  const size_t unit = size_t{blockIdx.x} * kForgetThreads + threadIdx.x;
  const auto i = static_cast<uint32_t>(unit / hot.n_kv_head);
  if (i >= pages.count) return;
  const uint32_t frame = pages.ids != nullptr ? pages.ids[i] : pages.first + i;
  forget(hot, frame, static_cast<uint32_t>(unit % hot.n_kv_head));
}

__global__ __launch_bounds__(kForgetThreads) void forget_layer_kernel(
    const __grid_constant__ HotParts hot, uint32_t layer) {
  const uint32_t i = blockIdx.x * kForgetThreads + threadIdx.x, head = blockIdx.y;
  if (i >= hot.layer_slots) return;
  const uint32_t frame = atomicExch(hot.held + first_slot_of(hot, layer, head) + i, kNoSlot);
  const uint32_t slot = hot.first_slot + layer * hot.layer_slots + i;
  if (frame != kNoSlot) atomicCAS(slot_of(hot, frame, head), slot, kNoSlot);
}

// Adds a frame of each lane that wants one. All lanes of a warp call.
__device__ void want(const HotParts& hot, uint32_t layer, uint32_t head, uint32_t frame,
                     bool wants) {
  const uint32_t lanes = __ballot_sync(~0u, wants), lane = threadIdx.x % 32;
  if (lanes == 0) return;
  uint32_t first = 0;
  if (lane == 0) first = atomicAdd(hot.wants + layer * hot.n_kv_head + head, __popc(lanes));
  first = __shfl_sync(~0u, first, 0);
  if (!wants) return;
  const uint32_t at = first + __popc(lanes & ((1u << lane) - 1));
  if (at < hot.layer_slots)
    hot.wanted[first_slot_of(hot, layer, head) + at] = frame;
  else
    *slot_of(hot, frame, head) = kNoSlot;
}

// A block per list and layer.
__global__ __launch_bounds__(kLookUpThreads) void look_up_kernel(
    const __grid_constant__ HotParts hot, const __grid_constant__ HotLookUp a) {
  allow_next_kernel();
  wait_for_kernels_before();
  const HotLists& own = a.lists[blockIdx.y];
  const uint32_t list = blockIdx.x, head = list % hot.n_kv_head;
  const uint32_t pages = (static_cast<uint32_t>(own.keys[list]) + kPageTokens - 1) / kPageTokens;
  const uint32_t step = *hot.step + a.ahead, first = hot.first_slot + own.layer * hot.layer_slots;
  uint32_t* used = hot.used + first_slot_of(hot, own.layer, head);
  uint32_t hits = 0, misses = 0;
  for (uint32_t start = 0; start < pages; start += kLookUpThreads) {
    const uint32_t i = start + threadIdx.x;
    uint32_t frame = 0, place = 0;
    bool wants = false;
    if (i < pages) frame = place = own.pages[size_t{list} * own.capacity + i];
    uint32_t* entry = i + 1 < pages ? slot_of(hot, frame, head) : nullptr;
    if (entry != nullptr) {
      const uint32_t slot = *entry;
      const bool hit = slot < kSlotToCome;
      (hit ? hits : misses) += 1;
      if (hit) used[slot - first] = step;
      if (hit) place = slot;
      if (!hit && a.fetch) wants = atomicCAS(entry, kNoSlot, kSlotToCome) == kNoSlot;
    }
    if (i < pages && own.found != nullptr) own.found[size_t{list} * own.capacity + i] = place;
    want(hot, own.layer, head, frame, wants);
  }
  if (own.found == nullptr) return;
  hits = __reduce_add_sync(~0u, hits);
  misses = __reduce_add_sync(~0u, misses);
  if (threadIdx.x % 32 != 0) return;
  if (hits > 0) atomicAdd(&hot.counts->hits, hits);
  if (misses > 0) atomicAdd(&hot.counts->misses, misses);
}

// Steps since a slot was needed; 0: it is needed.
__device__ uint32_t age_of(const HotParts& hot, size_t slot, uint32_t step) {
  return hot.held[slot] == kNoSlot ? kAges - 1 : min(step - hot.used[slot], kAges - 1);
}

struct Victims {
  uint32_t ages[kAges];        // slots of that age
  uint32_t cut, ties, chosen;  // older ones than cut go, and so many of its age
  uint32_t taken, tied;        // so far
};

// A block per KV head and layer.
__global__ __launch_bounds__(kAdmitThreads) void admit_kernel(const __grid_constant__ HotParts hot,
                                                              const __grid_constant__ HotFetch a) {
  __shared__ Victims v;
  const uint32_t layer = a.layers[blockIdx.y], head = blockIdx.x;
  const uint32_t list = layer * hot.n_kv_head + head;
  const size_t first = first_slot_of(hot, layer, head);
  const uint32_t wanted = min(hot.wants[list], hot.layer_slots), step = *hot.step + a.ahead;
  if (threadIdx.x < kAges) v.ages[threadIdx.x] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; wanted > 0 && i < hot.layer_slots; i += kAdmitThreads) {
    atomicAdd(&v.ages[age_of(hot, first + i, step)], 1u);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const uint32_t most = min(wanted, max(v.ages[0], a.most));
    uint32_t age = kAges - 1, older = 0;
    while (age > 1 && older + v.ages[age] < most) older += v.ages[age--];
    v.cut = age;
    v.ties = min(v.ages[age], most - older);
    v.chosen = older + v.ties;
    v.taken = v.tied = 0;
    hot.gifts[list] = v.chosen;
    hot.wants[list] = 0;
    if (v.chosen > 0) atomicAdd(&hot.counts->fetched, v.chosen);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; v.chosen > 0 && i < hot.layer_slots; i += kAdmitThreads) {
    const uint32_t age = age_of(hot, first + i, step);
    if (age < v.cut || (age == v.cut && atomicAdd(&v.tied, 1u) >= v.ties)) continue;
    const uint32_t at = atomicAdd(&v.taken, 1u), frame = hot.wanted[first + at];
    const uint32_t slot = hot.first_slot + layer * hot.layer_slots + i;
    const uint32_t before = atomicExch(hot.held + first + i, frame);
    if (before != kNoSlot) atomicCAS(slot_of(hot, before, head), slot, kNoSlot);
    hot.used[first + i] = step;
    hot.given[first + at] = slot;
    *slot_of(hot, frame, head) = slot;
  }
  for (uint32_t i = v.chosen + threadIdx.x; i < wanted; i += kAdmitThreads) {
    *slot_of(hot, hot.wanted[first + i], head) = kNoSlot;
  }
}

// A warp copies a part.
__device__ void copy_part(const HotParts& hot, const HotFetch& a, uint32_t layer, uint32_t head,
                          uint32_t i) {
  constexpr uint32_t kLoaded = 8;
  const uint32_t lane = threadIdx.x % 32, chunks = static_cast<uint32_t>(a.part_bytes / 16);
  const size_t at = first_slot_of(hot, layer, head) + i;
  const auto part = [&](uint32_t frame) {
    auto* const pages = static_cast<unsigned char*>(a.pages);
    return reinterpret_cast<uint4*>(pages + (size_t{frame} * hot.n_kv_head + head) * a.part_bytes);
  };
  const uint4* from = part(hot.wanted[at]);
  uint4* to = part(hot.given[at]);
  for (uint32_t first = lane; first < chunks; first += 32 * kLoaded) {
    uint4 loaded[kLoaded];
#pragma unroll
    for (uint32_t j = 0; j < kLoaded; ++j) {
      if (first + j * 32 < chunks) loaded[j] = from[first + j * 32];
    }
#pragma unroll
    for (uint32_t j = 0; j < kLoaded; ++j) {
      if (first + j * 32 < chunks) to[first + j * 32] = loaded[j];
    }
  }
}

// Warps take parts of all lists in turn. Few multiprocessors have enough bytes on their way for the
// bus, and the others are left to the kernels that run meanwhile.
__global__ __launch_bounds__(kCopyWarps * 32) void copy_kernel(const __grid_constant__ HotParts hot,
                                                               const __grid_constant__ HotFetch a) {
  const uint32_t lane = threadIdx.x % 32, heads = hot.n_kv_head, lists = a.count * heads;
  const uint32_t warps = gridDim.x * kCopyWarps;
  uint32_t next = blockIdx.x * kCopyWarps + threadIdx.x / 32;  // counts from the first of 32 lists
  for (uint32_t first = 0; first < lists; first += 32) {
    const uint32_t list = first + lane;
    const uint32_t own =
        list < lists ? hot.gifts[a.layers[list / heads] * heads + list % heads] : 0;
    uint32_t until = own;  // of lists up to the lane's
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t left = __shfl_up_sync(~0u, until, step);
      if (lane >= step) until += left;
    }
    const uint32_t parts = __shfl_sync(~0u, until, 31);
    for (; next < parts; next += warps) {
      const uint32_t behind = __popc(__ballot_sync(~0u, until <= next)), from = first + behind;
      const uint32_t i = next - __shfl_sync(~0u, until - own, behind);
      copy_part(hot, a, a.layers[from / heads], from % heads, i);
    }
    next -= parts;
  }
}

uint32_t blocks_of(uint64_t units) {
  return static_cast<uint32_t>((units + kForgetThreads - 1) / kForgetThreads);
}

}  // namespace

cudaError_t begin_hot_step(const HotParts& hot, const StoredRows& rows, cudaStream_t stream) {
  if (rows.rows == 0) return cudaSuccess;
  const uint64_t units = uint64_t{hot.n_layer} * rows.rows * hot.n_kv_head;
  return launch_overlapped(begin_kernel, dim3(blocks_of(units)), kForgetThreads, stream, hot, rows);
}

cudaError_t forget_hot_pages(const HotParts& hot, const PageIds& pages, cudaStream_t stream) {
  if (pages.count == 0) return cudaSuccess;
  forget_kernel<<<blocks_of(uint64_t{pages.count} * hot.n_kv_head), kForgetThreads, 0, stream>>>(
      hot, pages);
  return cudaGetLastError();
}

cudaError_t forget_hot_layer(const HotParts& hot, uint32_t layer, cudaStream_t stream) {
  const dim3 blocks(blocks_of(hot.layer_slots), hot.n_kv_head);
  forget_layer_kernel<<<blocks, kForgetThreads, 0, stream>>>(hot, layer);
  return cudaGetLastError();
}

cudaError_t look_up_hot_parts(const HotParts& hot, const HotLookUp& args, cudaStream_t stream) {
  if (args.rows == 0 || args.layers == 0) return cudaSuccess;
  return launch_overlapped(look_up_kernel, dim3(args.rows * hot.n_kv_head, args.layers),
                           kLookUpThreads, stream, hot, args);
}

cudaError_t fetch_hot_parts(const HotParts& hot, const HotFetch& args, cudaStream_t stream) {
  if (args.part_bytes % 16 != 0) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  admit_kernel<<<dim3(hot.n_kv_head, args.count), kAdmitThreads, 0, stream>>>(hot, args);
  copy_kernel<<<kCopyBlocks, kCopyWarps * 32, 0, stream>>>(hot, args);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda
