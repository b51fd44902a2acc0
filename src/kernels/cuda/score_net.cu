// Blocks take tiles of columns of lists in turn: convolutions, by tensor cores, of rows that are
// next to the edges of time, and of the row that has just left the newer one, whose projection is
// kept from then on.
#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/score_net.h"
#include "kernels/cuda/share_history.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 128, kWarps = kThreads / 32, kBlocks = 2;  // of a multiprocessor
constexpr uint32_t kColumns = kThreads;
constexpr uint32_t kTile = 16;                          // columns of a product
constexpr uint32_t kTiles = kColumns / kTile / kWarps;  // of a warp
constexpr uint32_t kInnerTiles = kColumns / kTile + 1;  // with a column to each side
constexpr uint32_t kInnerColumns = kInnerTiles * kTile;
constexpr uint32_t kPairs = kInnerColumns / 2 + 2;  // of inputs
constexpr int32_t kRun = 3;                         // rows that are projected together
constexpr int32_t kReach = 2;  // rows and columns that a projection sees to each side
constexpr uint32_t kOuterTiles = kNetOuter / 8, kInnerBytes = kNetInner * sizeof(__half);
static_assert(kNetInner == 16 && kInnerBytes == 32);

struct Shared {
  alignas(16) unsigned char inner[kRun + 2][kInnerColumns * kInnerBytes];
  // Pairs from columns of either parity on: the first is two left of the block's.
  uint32_t inputs[kRun + 4][2][kPairs];
  float known[kColumns];  // sums of parts
};

// What a block looks at.
struct Crop {
  const float* history;  // [count, capacity] of the list
  float* parts;
  uint32_t count, capacity;
  int32_t oldest, newest;  // rows, by position
  int32_t first, last;     // columns that there are
  int32_t begin;           // of the block's
  bool anew;

  __device__ size_t at(int32_t row) const {
    return static_cast<size_t>(static_cast<uint32_t>(row) % count) * capacity;
  }
  __device__ bool has(int32_t row) const { return row >= oldest && row <= newest; }
  __device__ bool has_column(int32_t column) const { return column >= first && column < last; }
  // Whether a row sees no edge of time.
  __device__ bool inside(int32_t row) const {
    return row >= oldest + kReach && row <= newest - kReach;
  }
  __device__ bool known(int32_t row) const { return !anew && inside(row) && row < newest - kReach; }
};

// A row of inner activations lies by column, 32 bytes each, whose halves change places every four
// columns, so that eight columns' halves lie in eight places.
__device__ uint32_t inner_offset(uint32_t column, uint32_t half) {
  return column * kInnerBytes + ((half ^ (column >> 2 & 1)) << 4);
}

// Rows from at - 2 on, zero where there are none. All their loads are on their way at once.
__device__ void load_inputs(const Crop& crop, int32_t at, int32_t rows, Shared& s) {
  for (uint32_t x = threadIdx.x; x < 2 * kPairs - 1; x += kThreads) {
    const int32_t column = crop.begin - 2 + static_cast<int32_t>(x);
    const bool inside = crop.has_column(column);
    float values[kRun + 4];
#pragma unroll
    for (int32_t slot = 0; slot < kRun + 4; ++slot) {
      const int32_t row = at - 2 + slot;
      const bool there = slot < rows && inside && crop.has(row);
      values[slot] = there ? crop.history[crop.at(row) + static_cast<size_t>(column)] : 0.0f;
    }
#pragma unroll
    for (int32_t slot = 0; slot < kRun + 4; ++slot) {
      if (slot >= rows) break;
      const __half scaled = __float2half_rn(values[slot] * kNetInputScale);
      reinterpret_cast<__half*>(s.inputs[slot][0])[x] = scaled;
      if (x > 0) reinterpret_cast<__half*>(s.inputs[slot][1])[x - 1] = scaled;
    }
  }
}

// A lane's part of the first convolution, in units of what it gives.
struct InnerWeights {
  uint32_t conv1[2][2];
  float2 bias[2], still[2];  // still: activations without inputs
  float unit;

  __device__ explicit InnerWeights(const ScoreNetImage& net) : unit(net.unit1 * net.inner_scale) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t tile = 0; tile < 2; ++tile) {
      const uint2 two = *reinterpret_cast<const uint2*>(net.conv1[tile][lane]);
      conv1[tile][0] = two.x;
      conv1[tile][1] = two.y;
      const float2 own = *reinterpret_cast<const float2*>(net.bias1 + tile * 8 + lane % 4 * 2);
      bias[tile] = {own.x * net.inner_scale, own.y * net.inner_scale};
      still[tile] = {fmaxf(0.0f, bias[tile].x), fmaxf(0.0f, bias[tile].y)};
    }
  }
};

// What inputs change of activations behind the first convolution, of rows from at - 1 on; zero
// where the second one pads.
__device__ void compute_inner(const ScoreNetImage& net, const Crop& crop, int32_t at, int32_t rows,
                              Shared& s) {
  const uint32_t lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const InnerWeights w(net);
  for (uint32_t job = threadIdx.x / 32; job < static_cast<uint32_t>(rows) * kInnerTiles;
       job += kWarps) {
    const uint32_t slot = job / kInnerTiles, x = job % kInnerTiles * kTile + group;
    if (!crop.has(at - 1 + static_cast<int32_t>(slot))) continue;
    const uint32_t* upper = s.inputs[slot + quad / 2][x % 2] + x / 2 + quad % 2;
    const uint32_t* lower = s.inputs[slot + 2][x % 2] + x / 2 + quad % 2;
    const bool lowest = quad < 2;  // inputs beyond twelve: there are none
    const uint32_t a[4] = {upper[0], upper[4], lowest ? lower[0] : 0, lowest ? lower[4] : 0};
    const int32_t column = crop.begin - 1 + static_cast<int32_t>(x);
    const bool inside[2] = {crop.has_column(column), crop.has_column(column + 8)};
#pragma unroll
    for (uint32_t tile = 0; tile < 2; ++tile) {
      float sums[4] = {};
      multiply<__half>(sums, a, {w.conv1[tile][0], w.conv1[tile][1]});
#pragma unroll
      for (uint32_t side = 0; side < 2; ++side) {
        const float *own = sums + side * 2, low = fmaxf(0.0f, own[0] * w.unit + w.bias[tile].x),
                    high = fmaxf(0.0f, own[1] * w.unit + w.bias[tile].y);
        const uint32_t change = pack<__half>(low - w.still[tile].x, high - w.still[tile].y);
        *reinterpret_cast<uint32_t*>(s.inner[slot] + inner_offset(x + side * 8, tile) + quad * 4) =
            inside[side] ? change : 0;
      }
    }
  }
}

// A warp's weights.
struct Weights {
  uint32_t conv2[9][kOuterTiles][2];
  float2 conv3[kOuterTiles];

  __device__ explicit Weights(const ScoreNetImage& net) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 9 * kOuterTiles; ++i) {
      const uint32_t* from = net.conv2[i / kOuterTiles][i % kOuterTiles][lane];
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      conv2[i / kOuterTiles][i % kOuterTiles][0] = two.x;
      conv2[i / kOuterTiles][i % kOuterTiles][1] = two.y;
    }
#pragma unroll
    for (uint32_t i = 0; i < kOuterTiles; ++i) {
      conv3[i] = *reinterpret_cast<const float2*>(net.conv3 + i * 8 + lane % 4 * 2);
    }
  }
};

using Sums = float[kOuterTiles][4];

// Projections of columns lane / 4 and lane / 4 + 8 of a tile from a first one on.
__device__ float2 end_projection(const ScoreNetImage& net, const Weights& weights, const Crop& crop,
                                 int32_t row, int32_t first, const Sums& sums) {
  const uint32_t quad = threadIdx.x % 4;
  const uint32_t rows =
      (crop.has(row - 1) ? 1 : 0) + (crop.has(row) ? 2 : 0) + (crop.has(row + 1) ? 4 : 0);
  float out[2] = {};
#pragma unroll
  for (uint32_t side = 0; side < 2; ++side) {
    const int32_t column = first + static_cast<int32_t>(threadIdx.x % 32 / 4 + side * 8);
    const uint32_t missing = (column == crop.first ? 1 : 0) + (column == crop.last - 1 ? 2 : 0);
    const float* still = net.still[rows][missing] + quad * 2;
#pragma unroll
    for (uint32_t tile = 0; tile < kOuterTiles; ++tile) {
      const float2 two = *reinterpret_cast<const float2*>(still + tile * 8);
      const float *own = sums[tile] + side * 2, unit = net.unit2;
      out[side] += weights.conv3[tile].x * fmaxf(0.0f, own[0] * unit + two.x);
      out[side] += weights.conv3[tile].y * fmaxf(0.0f, own[1] * unit + two.y);
    }
    for (uint32_t mask = 1; mask < 4; mask *= 2) {
      out[side] += __shfl_xor_sync(~0u, out[side], mask);
    }
  }
  return {out[0], out[1]};
}

// Second convolutions of rows [at, at + rows) over a tile of columns.
__device__ void convolve(const Weights& weights, const Crop& crop, int32_t at, int32_t rows,
                         uint32_t tile, const Shared& s, Sums (&sums)[kRun]) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (Sums& own : sums) {
    for (auto& four : own) four[0] = four[1] = four[2] = four[3] = 0.0f;
  }
#pragma unroll
  for (int32_t slot = 0; slot < kRun + 2; ++slot) {
    if (slot > rows + 1 || !crop.has(at - 1 + slot)) continue;
#pragma unroll
    for (uint32_t shift = 0; shift < 3; ++shift) {
      const uint32_t column = tile * kTile + lane % 16 + shift;
      uint32_t a[4];
      load_matrices(a, shared_address(s.inner[slot] + inner_offset(column, lane / 16)));
#pragma unroll
      for (int32_t row = 0; row < kRun; ++row) {
        if (slot < row || slot > row + 2 || row >= rows) continue;
#pragma unroll
        for (uint32_t n = 0; n < kOuterTiles; ++n) {
          const uint32_t tap = static_cast<uint32_t>(slot - row) * 3 + shift;
          multiply<__half>(sums[row][n], a, weights.conv2[tap][n]);
        }
      }
    }
  }
}

// The first column that the row after a position cannot choose.
__device__ int32_t last_column(const ForecastArgs& a, int32_t position) {
  const auto end = static_cast<uint32_t>(position) + 2;
  const uint32_t recent = end - min(end, a.recent_tokens);
  return static_cast<int32_t>(max(recent / kPageTokens, a.sink_pages));
}

// Projects rows [at, at + rows), and adds them to the totals of the lane's column in each tile:
// lane % 4 is 0 or 1 where a lane has one.
__device__ void project(const ScoreNetImage& net, const Weights& weights, const Crop& crop,
                        int32_t at, int32_t rows, Shared& s, float (&totals)[kTiles]) {
  __syncthreads();  // what was there before was read
  load_inputs(crop, at, rows + 4, s);
  __syncthreads();
  compute_inner(net, crop, at, rows + 2, s);
  __syncthreads();
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t i = 0; i < kTiles; ++i) {
    const uint32_t tile = threadIdx.x / 32 * kTiles + i;
    const int32_t first = crop.begin + static_cast<int32_t>(tile * kTile);
    if (first >= crop.last) break;
    Sums sums[kRun];
    convolve(weights, crop, at, rows, tile, s, sums);
    const int32_t column = first + static_cast<int32_t>(lane / 4 + lane % 4 * 8);
#pragma unroll
    for (int32_t row = 0; row < kRun; ++row) {
      if (row >= rows) break;
      const float2 two = end_projection(net, weights, crop, at + row, first, sums[row]);
      const float own = lane % 4 == 0 ? two.x : two.y;
      totals[i] += own;
      if (lane % 4 < 2 && column < crop.last && crop.inside(at + row)) {
        crop.parts[crop.at(at + row) + static_cast<size_t>(column)] = own;
      }
    }
  }
}

__device__ void add_known(const Crop& crop, Shared& s) {
  const int32_t column = crop.begin + static_cast<int32_t>(threadIdx.x);
  float sum = 0.0f;
  if (column < crop.last && !crop.anew) {
    const float* parts = crop.parts + column;
#pragma unroll 4
    for (int32_t row = crop.oldest + kReach; row < crop.newest - kReach; ++row) {
      sum += parts[crop.at(row)];
    }
  }
  s.known[threadIdx.x] = sum;
}

// list: of the slot that the row has.
__device__ void forecast(const ForecastArgs& a, const Weights& weights, const Crop& crop,
                         size_t list, Shared& s) {
  const ScoreNetImage& net = *a.net;
  __syncthreads();  // sums of the tile before were read
  add_known(crop, s);
  float totals[kTiles] = {};
  for (int32_t at = crop.oldest; at <= crop.newest;) {
    if (crop.known(at)) {
      at = crop.newest - kReach;
      continue;
    }
    int32_t rows = 1;
    while (rows < kRun && at + rows <= crop.newest && !crop.known(at + rows)) ++rows;
    project(net, weights, crop, at, rows, s, totals);
    at += rows;
  }
  const uint32_t lane = threadIdx.x % 32;
  if (lane % 4 > 1) return;
  const float share = 1.0f / static_cast<float>(crop.newest - crop.oldest + 1);
#pragma unroll
  for (uint32_t i = 0; i < kTiles; ++i) {
    const uint32_t own = (threadIdx.x / 32 * kTiles + i) * kTile + lane / 4 + lane % 4 * 8;
    const int32_t column = crop.begin + static_cast<int32_t>(own);
    if (column >= crop.last) break;
    const size_t out = list * a.capacity + static_cast<size_t>(column);
    const float forecast = (totals[i] + s.known[own]) * share + net.bias3;
    a.forecasts[out] = forecast + (a.averages != nullptr ? sqrtf(a.averages[out]) : 0.0f);
  }
}

__device__ ForecastArgs of_layer(ForecastArgs a, uint32_t layer) {
  const size_t elements = layer * a.layer_stride;
  a.history.rows += elements * a.history.count;
  a.parts += elements * a.history.count;
  if (a.averages != nullptr) a.averages += elements;
  a.forecasts += elements;
  return a;
}

__global__ __launch_bounds__(kThreads, kBlocks) void forecast_kernel(
    const __grid_constant__ ForecastArgs layers, uint32_t units, uint32_t tiles) {
  __shared__ Shared s;
  allow_next_kernel();
  const Weights weights(*layers.net);
  wait_for_kernels_before();
  for (uint32_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const uint32_t pair = unit / tiles, lists = layers.rows * layers.n_kv_head;
    const ForecastArgs a = of_layer(layers, pair / lists);
    const uint32_t row = pair % lists / a.n_kv_head;
    const int32_t newest = a.positions[row], last = last_column(a, newest);
    const auto first = static_cast<int32_t>(a.sink_pages);
    const int32_t begin = first + static_cast<int32_t>(unit % tiles * kColumns);
    if (newest < 0 || begin >= last) continue;
    const uint32_t slot = a.slots != nullptr ? a.slots[row] : row;
    const size_t list = size_t{slot} * a.n_kv_head + pair % a.n_kv_head;
    const size_t ring = list * a.history.count * a.capacity;
    // Whether parts are not known: of the tile's columns some are new, or saw the edge.
    const int32_t before = last_column(a, newest - 1);
    const bool widens = last > before && begin + static_cast<int32_t>(kColumns) > before - kReach;
    forecast(a, weights,
             {a.history.rows + ring, a.parts + ring, a.history.count, a.capacity,
              max(0, newest + 1 - static_cast<int32_t>(a.history.count)), newest, first, last,
              begin, a.anew || widens},
             list, s);
  }
}

}  // namespace

cudaError_t forecast_shares(const ForecastArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.capacity == 0) return cudaSuccess;
  const uint32_t tiles = (args.capacity + kColumns - 1) / kColumns;
  const uint32_t units = tiles * args.rows * args.n_kv_head * args.layers;
  const uint32_t blocks = std::min(units, device_limits().multiprocessors * kBlocks);
  return launch_overlapped(forecast_kernel, dim3(blocks), kThreads, stream, args, units, tiles);
}

}  // namespace reprise::kernels::cuda
