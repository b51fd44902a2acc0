// What the blocks of the scan for the best keys share, and the ring of stages that keys come
// through.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_fragments.cuh"
#include "kernels/cuda/top_keys_lists.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace reprise::kernels::cuda {

namespace top {

// A block's place: grid (splits, n_kv_head * query_blocks, batch).
struct Params {
  TopKeysArgs a;
  uint32_t group, queries;  // query heads per KV head; voters * group, of a KV head
  uint32_t query_warps, key_warps, query_blocks, splits;
  RankedWord* found;  // [batch, splits, n_kv_head, queries, k]

  __device__ RankedWord* list(uint32_t sequence, uint32_t split, uint32_t kv_head,
                              uint32_t query) const {
    const size_t head = (size_t{sequence} * splits + split) * a.kv.n_kv_head + kv_head;
    return found + (head * queries + query) * a.k;
  }
  __device__ uint32_t* floors_of(uint32_t sequence, uint32_t kv_head) const {
    return a.floors + (size_t{sequence} * a.kv.n_kv_head + kv_head) * queries;
  }
  // Query i of a KV head.
  __device__ const float* query(uint32_t sequence, uint32_t kv_head, uint32_t i) const {
    const uint32_t row = a.rows - 1 - i / group * a.stride, head = kv_head * group + i % group;
    return a.q + ((size_t{sequence} * a.rows + row) * a.n_head + head) * a.kv.head_dim;
  }
};

constexpr uint32_t pieces(uint32_t count, uint32_t size) { return (count + size - 1) / size; }

/// The scan of a KV type, which sets how it is cut; see top_keys_kv.cu.
template <KvType type>
cudaError_t scan_with(Params& params, cudaStream_t stream);

// NT: tiles of eight queries that a warp has.
template <KvType type, int D, int NT>
struct Shape {
  static constexpr KvType kType = type;
  static constexpr int kHeadDim = D, kSteps = D / 16, kTiles = NT;
  static constexpr uint32_t kQueries = NT * 8, kTileBytes = tile_bytes(type, D);
  static constexpr bool kFew = NT == 1;  // queries; keys come as fast as memory gives them
  static constexpr uint32_t kLookPart = kFew ? 0 : 8;                           // as PageShare
  static constexpr uint32_t kPages = (D < 128 ? 8 : 512 / D) * (kFew ? 2 : 1);  // of a stage
  static constexpr uint32_t kStages = kFew ? 3 : 4;
  static constexpr uint32_t kStageBytes = kPages * kTileBytes;
  static constexpr uint32_t kMostWarps = kFew ? 16 : D == 64 ? 12 : 11;  // that compute
  static constexpr uint32_t kMostThreads = (kMostWarps + 1) * 32;
  // Of a warp's keys, those of two rows of its pages, whose largest scores are known to others.
  static constexpr uint32_t kGroups = kFew ? 8 : 0;
};

template <typename S>
struct Ring {
  alignas(128) unsigned char pages[S::kStages][S::kStageBytes];
  uint64_t full[S::kStages], empty[S::kStages];
};

// From so many keys on it is worth knowing early what scores must reach.
constexpr uint32_t kManyKeys = 8;

// Shared memory after the ring, all of it for [key_warps][queries of the block].
struct Lists {
  uint32_t queries, room;          // of the block; of a list
  uint32_t groups;                 // of the block's keys; 0: tops are not kept
  RankedWord* words;               // [key_warps, queries, room]
  uint32_t* counts;                // [key_warps, queries] words
  uint32_t* floors;                // [queries] upper half of a word that k words reach, or 0
  uint32_t* tops;                  // [queries, groups] upper half of a group's largest word, or 0
  uint32_t known = 0;              // queries that there are
  uint32_t* all_floors = nullptr;  // [known] the same of all blocks, in device memory

  __device__ Lists(void* memory, const Params& p, uint32_t queries_of_warp, uint32_t groups_of_warp,
                   uint32_t words_of_list)
      : queries(p.query_warps * queries_of_warp),
        room(words_of_list),
        groups(p.a.k >= kManyKeys ? p.key_warps * groups_of_warp : 0) {
    const uint32_t lists = p.key_warps * queries;
    words = static_cast<RankedWord*>(memory);
    counts = reinterpret_cast<uint32_t*>(words + size_t{lists} * room);
    floors = counts + lists;
    tops = floors + queries;
  }
};

// Counts and what follows them, which are zero at first.
REPRISE_HOST_DEVICE constexpr uint32_t list_numbers(uint32_t key_warps, uint32_t queries,
                                                    uint32_t groups_of_warp) {
  return (key_warps * (1 + groups_of_warp) + 1) * queries;
}

constexpr size_t lists_bytes(uint32_t key_warps, uint32_t queries, uint32_t room,
                             uint32_t groups_of_warp) {
  return size_t{key_warps} * queries * room * sizeof(RankedWord) +
         list_numbers(key_warps, queries, groups_of_warp) * sizeof(uint32_t);
}

// Groups of keys, of whose largest scores the k-th is one that k keys reach.
constexpr uint32_t kLookedAt = 16;

// The pages of a block, counted back from the newest.
struct PageShare {
  KeyRange32 middle;
  uint32_t end = 0, count = 0;  // page end - 1 is the first one
  uint32_t first_look = 0;      // so many are scanned twice: first for what scores must reach

  // looked_at: pages that all warps look at first; part: each warp looks at one of so many of its
  // own pages instead, 0: it does not.
  __device__ PageShare(const Params& p, uint32_t sequence, uint32_t split, uint32_t looked_at,
                       uint32_t part) {
    middle = middle_of(p.a.middle, p.a.positions[sequence], p.a.rows);
    const auto most = static_cast<int32_t>(p.a.capacity * kPageTokens);
    middle.end = min(middle.end, most);
    if (middle.begin >= middle.end) return;
    const auto first = static_cast<uint32_t>(middle.begin) / kPageTokens;
    const uint32_t pages = (static_cast<uint32_t>(middle.end) - 1) / kPageTokens + 1 - first;
    const auto cut = [&](uint32_t i) {
      return first + static_cast<uint32_t>(uint64_t{pages} * i / p.splits);
    };
    end = cut(split + 1);
    count = end - cut(split);
    first_look = min(looked_at, count);
    if (part == 0 || p.a.k > kLookedAt) return;
    const uint32_t of_warp = min(max(count / p.key_warps / part, 8u), 2048 / part);
    first_look = min(of_warp * p.key_warps, count);
  }
};

// Stages come and go by barriers: of copies where there are bulk copies, else of threads.
template <typename S>
class Stages {
 public:
  __device__ Stages(Ring<S>& ring, uint32_t consumers) : ring_(ring), consumers_(consumers) {}

  __device__ static void init(Ring<S>& ring, uint32_t consumers) {
#if __CUDA_ARCH__ >= 900
    for (uint32_t i = 0; i < S::kStages; ++i) {
      barrier_init(&ring.full[i], 1);
      barrier_init(&ring.empty[i], consumers);
    }
    publish_barriers();
#endif
  }

  // from: the tile of the lane's page. All lanes of one warp call.
  __device__ void copy(const unsigned char* from, uint32_t pages) {
    const uint32_t lane = threadIdx.x % 32, i = count_ % S::kStages;
    unsigned char* to = ring_.pages[i] + lane * S::kTileBytes;
#if __CUDA_ARCH__ >= 900
    barrier_wait(&ring_.empty[i], (count_ / S::kStages & 1) ^ 1);
    if (lane == 0) barrier_expect(&ring_.full[i], pages * S::kTileBytes);
    __syncwarp();
    if (lane < pages) bulk_copy(to, from, S::kTileBytes, &ring_.full[i]);
#else
    if (count_ >= S::kStages) wait_named(kEmpty + i, threads());
    if (lane < pages) {
      for (uint32_t at = 0; at < S::kTileBytes; at += 16) copy_16_bytes(to + at, from + at);
    }
    wait_for_copies();
    __syncwarp();
    __threadfence_block();
    arrive_named(kFull + i, threads());
#endif
    ++count_;
  }

  __device__ const unsigned char* wait() const {
    const uint32_t i = count_ % S::kStages;
#if __CUDA_ARCH__ >= 900
    barrier_wait(&ring_.full[i], count_ / S::kStages & 1);
#else
    wait_named(kFull + i, threads());
#endif
    return ring_.pages[i];
  }

  // left: stages that follow this one.
  __device__ void release([[maybe_unused]] uint32_t left) {
    __syncwarp();
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) barrier_arrive(&ring_.empty[count_ % S::kStages]);
#else
    if (left >= S::kStages) arrive_named(kEmpty + count_ % S::kStages, threads());
#endif
    ++count_;
  }

  static constexpr uint32_t kUnused = 1 + 2 * S::kStages;  // a named barrier

 private:
  static constexpr uint32_t kFull = 1, kEmpty = kFull + S::kStages;
  __device__ uint32_t threads() const { return (consumers_ + 1) * 32; }

  Ring<S>& ring_;
  uint32_t consumers_, count_ = 0;
};

}  // namespace top

}  // namespace reprise::kernels::cuda
