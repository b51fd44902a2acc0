// A block computes some columns of a list: convolutions of rows that are next to the edges of time,
// and of the row that has just left the newer one, whose projection is kept from then on.
#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/score_net.h"
#include "kernels/cuda/share_history.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 128, kColumns = 64;
constexpr uint32_t kWidth = kColumns + 4;  // of inner rows: a column to each side; aligned
constexpr uint32_t kLanes = 8;             // that share columns
constexpr uint32_t kOwn = 4;               // channels and columns of a thread
constexpr int32_t kReach = 2;              // rows and columns that a projection sees to each side
static_assert(kThreads == kColumns / kOwn * kLanes && kNetOuter == kLanes * kOwn);

// ScoreNet, whose arrays device code cannot index.
struct Weights {
  float conv1[9 * kNetInner], bias1[kNetInner], conv2[9 * kNetInner * kNetOuter], bias2[kNetOuter];
  float conv3[kNetOuter], bias3;
};
static_assert(sizeof(Weights) == sizeof(ScoreNet));

struct Shared {
  float4 conv2[9 * kNetInner * kLanes];  // [row][column][inner][outer]
  float conv1[9 * kNetInner];            // [row][column][inner]
  float inner[3][kNetInner][kWidth];     // of row r in r % 3, from the column before the first
};

// What a block looks at.
struct Crop {
  const float* history;  // [count, capacity] of the list
  uint32_t count, capacity;
  int32_t oldest, newest;  // rows, by position
  int32_t first, last;     // columns that there are
  int32_t begin;           // of the block's

  __device__ size_t at(int32_t row) const {
    return static_cast<size_t>(static_cast<uint32_t>(row) % count) * capacity;
  }
  __device__ bool has(int32_t row) const { return row >= oldest && row <= newest; }
};

// Activations behind the first convolution; zero where the second one pads.
__device__ void compute_inner(const Weights& net, const Crop& crop, int32_t row, Shared& s) {
  for (int32_t x = static_cast<int32_t>(threadIdx.x); x < static_cast<int32_t>(kColumns) + 2;
       x += kThreads) {
    const int32_t column = crop.begin - 1 + x;
    const bool inside = column >= crop.first && column < crop.last;
    float sums[kNetInner];
#pragma unroll
    for (uint32_t c = 0; c < kNetInner; ++c) sums[c] = inside ? net.bias1[c] : 0.0f;
    for (int32_t tap = 0; inside && tap < 9; ++tap) {
      const int32_t from = row + tap / 3 - 1, next = column + tap % 3 - 1;
      if (!crop.has(from) || next < crop.first || next >= crop.last) continue;
      const float value = crop.history[crop.at(from) + static_cast<size_t>(next)];
#pragma unroll
      for (uint32_t c = 0; c < kNetInner; ++c) sums[c] += s.conv1[tap * kNetInner + c] * value;
    }
#pragma unroll
    for (uint32_t c = 0; c < kNetInner; ++c) s.inner[row % 3][c][x] = fmaxf(0.0f, sums[c]);
  }
}

// The projection of a row at column threadIdx.x / 8 * 4 + threadIdx.x % 4.
__device__ float project(const Weights& net, const Crop& crop, int32_t row, const Shared& s) {
  const uint32_t lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes * kOwn;
  float sums[kOwn][kOwn];  // [column][channel]
#pragma unroll
  for (uint32_t i = 0; i < kOwn * kOwn; ++i) {
    sums[i / kOwn][i % kOwn] = net.bias2[lane * kOwn + i % kOwn];
  }
  for (int32_t tap = 0; tap < 3; ++tap) {
    const int32_t from = row + tap - 1;
    if (!crop.has(from)) continue;
#pragma unroll 4
    for (uint32_t c = 0; c < kNetInner; ++c) {
      const float* in = s.inner[from % 3][c] + group;
      const float4 four = *reinterpret_cast<const float4*>(in);
      const float2 two = *reinterpret_cast<const float2*>(in + 4);
      const float values[6] = {four.x, four.y, four.z, four.w, two.x, two.y};
#pragma unroll
      for (uint32_t shift = 0; shift < 3; ++shift) {
        const float4 w = s.conv2[((tap * 3 + shift) * kNetInner + c) * kLanes + lane];
#pragma unroll
        for (uint32_t i = 0; i < kOwn; ++i) {
          sums[i][0] += w.x * values[i + shift];
          sums[i][1] += w.y * values[i + shift];
          sums[i][2] += w.z * values[i + shift];
          sums[i][3] += w.w * values[i + shift];
        }
      }
    }
  }
  float own = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kOwn; ++i) {
    float out = 0.0f;
#pragma unroll
    for (uint32_t c = 0; c < kOwn; ++c) {
      out += net.conv3[lane * kOwn + c] * fmaxf(0.0f, sums[i][c]);
    }
    for (uint32_t mask = 1; mask < kLanes; mask *= 2) out += __shfl_xor_sync(~0u, out, mask);
    if (threadIdx.x % kOwn == i) own = out;
  }
  return own;
}

// The first column that the row after a position cannot choose.
__device__ int32_t last_column(const ForecastArgs& a, int32_t position) {
  const auto end = static_cast<uint32_t>(position) + 2;
  const uint32_t recent = end - min(end, a.recent_tokens);
  return static_cast<int32_t>(max(recent / kPageTokens, a.sink_pages));
}

// Whether parts are not known: of the block's columns some are new, or saw the edge.
__device__ bool is_anew(const ForecastArgs& a, const Crop& crop) {
  const int32_t before = last_column(a, crop.newest - 1);
  return a.anew ||
         (crop.last > before && crop.begin + static_cast<int32_t>(kColumns) > before - kReach);
}

__global__ __launch_bounds__(kThreads) void forecast_kernel(
    const __grid_constant__ ForecastArgs a) {
  __shared__ Shared s;
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t row = blockIdx.y / a.n_kv_head;
  const int32_t newest = a.positions[row];
  const auto first = static_cast<int32_t>(a.sink_pages);
  const int32_t begin = first + static_cast<int32_t>(blockIdx.x * kColumns);
  if (newest < 0 || begin >= last_column(a, newest)) return;
  const uint32_t slot = a.slots != nullptr ? a.slots[row] : row;
  const size_t list = size_t{slot} * a.n_kv_head + blockIdx.y % a.n_kv_head;
  const size_t ring = list * a.history.count * a.capacity;
  const auto& net = *reinterpret_cast<const Weights*>(a.net);
  const Crop crop = {a.history.rows + ring,
                     a.history.count,
                     a.capacity,
                     max(0, newest + 1 - static_cast<int32_t>(a.history.count)),
                     newest,
                     first,
                     last_column(a, newest),
                     begin};
  const auto* conv2 = reinterpret_cast<const float4*>(net.conv2);
  for (uint32_t i = threadIdx.x; i < 9 * kNetInner * kLanes; i += kThreads) s.conv2[i] = conv2[i];
  for (uint32_t i = threadIdx.x; i < 9 * kNetInner; i += kThreads) s.conv1[i] = net.conv1[i];
  const uint32_t lane = threadIdx.x % kLanes;
  const int32_t column = begin + static_cast<int32_t>(threadIdx.x / kLanes * kOwn + lane);
  const bool writes = lane < kOwn && column < crop.last;
  const bool anew = is_anew(a, crop);
  float* parts = a.parts + ring;
  float total = 0.0f;
  int32_t done = -1;  // the newest inner row
  for (int32_t at = crop.oldest; at <= newest; ++at) {
    const bool inside = at >= crop.oldest + kReach && at <= newest - kReach;
    if (inside && at < newest - kReach && !anew) {
      if (writes) total += parts[crop.at(at) + static_cast<size_t>(column)];
      continue;
    }
    __syncthreads();  // inner rows were read
    for (int32_t inner = max(max(at - 1, done + 1), crop.oldest); inner <= min(at + 1, newest);
         ++inner) {
      compute_inner(net, crop, inner, s);
    }
    done = min(at + 1, newest);
    __syncthreads();
    const float part = project(net, crop, at, s);
    total += part;
    if (inside && writes) parts[crop.at(at) + static_cast<size_t>(column)] = part;
  }
  if (!writes) return;
  const size_t out = list * a.capacity + static_cast<size_t>(column);
  const float share = 1.0f / static_cast<float>(newest - crop.oldest + 1);
  const float forecast = total * share + net.bias3;
  a.forecasts[out] = forecast + (a.averages != nullptr ? sqrtf(a.averages[out]) : 0.0f);
}

}  // namespace

cudaError_t forecast_shares(const ForecastArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.capacity == 0) return cudaSuccess;
  const dim3 grid((args.capacity + kColumns - 1) / kColumns, args.rows * args.n_kv_head);
  return launch_overlapped(forecast_kernel, grid, kThreads, stream, args);
}

}  // namespace reprise::kernels::cuda
