// Tensor cores multiply 16 rows of weights, as codes, by up to 8 rows of x, whose bf16 value and
// remainder are two operands; scales come after, in float. Work is cut so that every warp reads
// about as many units: over tiles of rows, over chunks of a tile, and for long rows over the blocks
// of a cluster.
#include <algorithm>

#include "kernels/cuda/matvec_input.cuh"
#include "kernels/cuda/matvec_units.cuh"

namespace reprise::kernels::cuda {
namespace {

using namespace matvec_detail;

// Of one row and one row of x; sum is over all columns.
__device__ void write_result(const Params& p, const Part& part, uint32_t row, uint32_t n, float sum,
                             float squares) {
  if (row >= part.w.rows || n >= p.batch) return;
  if (p.norm) sum *= 1.0f / sqrtf(squares / static_cast<float>(p.cols) + p.norm_eps);
  if (part.bias != nullptr) sum += part.bias[row];
  float* out = part.out + n * part.out_stride + row;
  *out = part.accumulate ? *out + sum : sum;
}

// Adds up what the members of a team, in all blocks of the cluster, have of a tile. A warp of each
// block takes its share of the tile; groups of its lanes read one block each.
__device__ void finish_tile(const Params& p, const Part& part, const Place& place,
                            const Shared& shared, uint32_t tile) {
  const uint32_t lane = threadIdx.x % 32, share = 32 / p.cluster_size;
  const uint32_t source = lane / share, item = place.block * share + lane % share;
  float4 sum = {};
  for (uint32_t member = 0; member < part.members; ++member) {
    const float4* from = &shared.partials[place.team * part.members + member][item];
    const float4 v = p.cluster_size == 1 ? *from : load_remote(from, source);
    sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
  }
  for (uint32_t mask = share; mask < 32; mask *= 2) {
    sum.x += __shfl_xor_sync(~0u, sum.x, mask);
    sum.y += __shfl_xor_sync(~0u, sum.y, mask);
    sum.z += __shfl_xor_sync(~0u, sum.z, mask);
    sum.w += __shfl_xor_sync(~0u, sum.w, mask);
  }
  if (source != 0) return;
  const uint32_t row = tile * kTileRows + item / 4, n = item % 4 * 2;
  float squares[2] = {};
  if (p.norm) {
    for (uint32_t block = 0; block < p.cluster_size; ++block) {
      const float4* from = reinterpret_cast<const float4*>(shared.totals) + n / 4;
      const float4 v = p.cluster_size == 1 ? *from : load_remote(from, block);
      squares[0] += n % 4 == 0 ? v.x : v.z;
      squares[1] += n % 4 == 0 ? v.y : v.w;
    }
  }
  write_result(p, part, row, n, sum.x, squares[0]);
  write_result(p, part, row, n + 1, sum.y, squares[1]);
  write_result(p, part, row + 8, n, sum.z, squares[0]);
  write_result(p, part, row + 8, n + 1, sum.w, squares[1]);
}

__device__ void barrier(uint32_t cluster_size) {
  __syncwarp();
  if (cluster_size == 1) {
    __syncthreads();
  } else {
    cluster_barrier();
  }
}

template <class F>
__device__ void multiply_tiles(const Params& p, const Part& part, const Place& place,
                               UnitStream& units, Shared& shared, const unsigned char* memory) {
  Products<F> products(part, p.batch, memory);
  const uint32_t members = part.members, chunks = place.end - place.begin;
  for (uint32_t round = 0; round < part.rounds; ++round) {
    const uint32_t tile = place.tile(part, round);
    const bool mine = tile < part.w.tiles;
    products.reset();
    if (mine) {
      for (uint32_t chunk = place.member; chunk < chunks; chunk += members) {
        products.add(units.wait(), chunk);
        units.fetch<F>();
      }
    }
    if (round > 0) barrier(p.cluster_size);  // the partials before are read
    if (mine) shared.partials[threadIdx.x / 32][threadIdx.x % 32] = products.result();
    barrier(p.cluster_size);
    if (mine && place.member + 1 == part.members) finish_tile(p, part, place, shared, tile);
  }
  if (p.cluster_size > 1) barrier(p.cluster_size);  // nobody reads this block any more
}

__global__ __launch_bounds__(kMaxWarps * 32,
                             1) void matvec_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  allow_next_kernel();
  const uint32_t cluster = blockIdx.x / p.cluster_size;
  uint32_t index = 0;
  while (index + 1 < p.count && cluster >= p.parts[index + 1].first_cluster) ++index;
  const Part& part = p.parts[index];
  const Place place(part, p.cluster_size);
  const uint32_t ring_bytes = (part.input_at - sizeof(Shared)) / p.warps;
  UnitStream units(part, place, memory + sizeof(Shared) + threadIdx.x / 32 * ring_bytes);
  with_format(part.w.type, [&](auto format) { units.template start<decltype(format)>(); });
  wait_for_kernels_before();
  const uint32_t first_column = place.block * part.columns;
  stage_input(p, part, first_column, shared, memory);
  with_format(part.w.type, [&](auto format) {
    multiply_tiles<decltype(format)>(p, part, place, units, shared, memory);
  });
}

uint32_t divide_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// Shared memory that a part needs; notes where things are.
uint32_t lay_out(Part& part, uint32_t cluster_size, uint32_t warps, uint32_t batch) {
  const DeviceFormat format = device_format(part.w.type);
  part.layout = format.quantized()            ? InputLayout::kSlots
                : format.codes == Codes::kF32 ? InputLayout::kFloat
                                              : InputLayout::kOrdered;
  part.sum_columns = format.codes == Codes::kInt4 || format.has_min ? format.group : 0;
  // What weights of 0 add to the sums of codes of 4 bits, to begin them with.
  part.sum_factor = format.has_min ? 1.0f : -136.0f;
  part.slice = divide_up(part.w.chunks, cluster_size);
  part.columns = part.slice * format.chunk_columns();
  const uint32_t unit =
      kUnitBytes + kTileRows * format.chunk_scale_bytes() + (format.super ? kFactorBytes : 0);
  part.input_at = sizeof(Shared) + warps * kStages * unit;
  part.input_stride = part.columns * 4 + 64;  // two rows lie in different banks
  part.sums_at = part.input_at + batch * part.input_stride;
  const uint32_t sums = part.sum_columns == 0 ? 0 : part.columns / part.sum_columns;
  return part.sums_at + sums * kMatvecBatch * 4;
}

uint32_t lay_out(Params& p, uint32_t batch) {
  uint32_t bytes = 0;
  for (uint32_t i = 0; i < p.count; ++i) {
    bytes = std::max(bytes, lay_out(p.parts[i], p.cluster_size, p.warps, batch));
  }
  return bytes;
}

// Members, teams and rounds with which the fewest clusters do a part while no warp reads more than
// limit units; their number, or limit.
bool cut_part(Part& part, uint32_t limit) {
  part.clusters = 0;
  for (uint32_t members = 1; members <= kMaxWarps; ++members) {
    const uint32_t units = divide_up(part.slice, members);
    if (units > limit) continue;
    const uint32_t teams = kMaxWarps / members, rounds = limit / units;
    const uint32_t clusters = divide_up(part.w.tiles, teams * rounds);
    if (part.clusters != 0 && clusters >= part.clusters) continue;
    part.members = members;
    part.teams = teams;
    part.rounds = std::min(rounds, divide_up(part.w.tiles, teams));
    part.clusters = clusters;
  }
  return part.clusters != 0;
}

// Clusters that all parts together need, or more than available.
uint32_t cut_parts(Params& p, uint32_t limit, uint32_t available) {
  uint32_t clusters = 0;
  for (uint32_t i = 0; i < p.count; ++i) {
    if (!cut_part(p.parts[i], limit)) return available + 1;
    clusters += p.parts[i].clusters;
  }
  return clusters;
}

// Spreads parts over clusters of which each may have fewer teams than its warps allow.
void spread_parts(Params& p, uint32_t available) {
  for (uint32_t most = 1; most <= kMaxWarps; ++most) {
    uint32_t clusters = 0;
    for (uint32_t i = 0; i < p.count; ++i) {
      const Part& part = p.parts[i];
      clusters += divide_up(part.w.tiles, std::min(most, part.teams) * part.rounds);
    }
    if (clusters > available) continue;
    for (uint32_t i = 0; i < p.count; ++i) {
      Part& part = p.parts[i];
      part.teams = std::min(most, part.teams);
      part.clusters = divide_up(part.w.tiles, part.teams * part.rounds);
    }
    return;
  }
}

// Cuts the work so that the warp with most units has as few as possible.
uint32_t cut_work(Params& p, uint32_t available) {
  uint32_t low = 0, high = 1;  // low: too few
  while (cut_parts(p, high, available) > available) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (cut_parts(p, middle, available) > available ? low : high) = middle;
  }
  cut_parts(p, high, available);
  spread_parts(p, available);
  uint32_t clusters = 0;
  p.warps = 1;
  for (uint32_t i = 0; i < p.count; ++i) {
    Part& part = p.parts[i];
    part.first_cluster = clusters;
    clusters += part.clusters;
    p.warps = std::max(p.warps, part.teams * part.members);
  }
  return clusters;
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

cudaError_t make_params(const MatvecArgs& args, Params* p) {
  const MatvecInput& input = args.input;
  const bool norm = input.norm_weight != nullptr, gated = input.up != nullptr;
  if (args.count == 0 || args.count > kMatvecProjections || args.batch == 0 ||
      args.batch > kMatvecBatch || (norm && gated)) {
    return cudaErrorInvalidValue;
  }
  for (uint32_t i = 0; i < args.count; ++i) {
    const MatvecProjection& projection = args.projections[i];
    Part& part = p->parts[i];
    part.w = projection.weight->weights();
    if (part.w.rows == 0 || part.w.cols != args.projections[0].weight->cols()) {
      return cudaErrorInvalidValue;
    }
    part.out = projection.out;
    part.out_stride = projection.out_stride;
    part.bias = projection.bias;
    part.accumulate = projection.accumulate;
  }
  p->count = args.count;
  p->batch = args.batch;
  p->cols = p->parts[0].w.cols;
  p->x = input.x;
  p->stride = input.stride;
  p->second = norm ? input.norm_weight : input.up;
  p->second_stride = gated ? input.stride : 0;
  p->norm = norm;
  p->gated = gated;
  p->norm_eps = input.norm_eps;
  p->activation = input.activation;
  p->aligned = aligned(p->x) && aligned(p->second) && p->stride % 4 == 0 && p->cols % 4 == 0;
  return cudaSuccess;
}

// The fewest blocks that hold a full batch, so that the batch does not change sums.
cudaError_t choose_cluster(Params& p, uint32_t limit) {
  p.warps = kMaxWarps;
  p.cluster_size = 1;
  while (p.cluster_size < 8 && lay_out(p, kMatvecBatch) > limit) p.cluster_size *= 2;
  return lay_out(p, p.batch) <= limit ? cudaSuccess : cudaErrorNotSupported;
}

cudaError_t count_clusters(const Params& p, cudaLaunchConfig_t config, int* clusters) {
  if (p.cluster_size == 1) return cudaSuccess;
  config.gridDim = dim3(p.cluster_size);
  return cudaOccupancyMaxActiveClusters(clusters, matvec_kernel, &config);
}

}  // namespace

cudaError_t matvec(const MatvecArgs& args, cudaStream_t stream) {
  Params p = {};
  if (const cudaError_t status = make_params(args, &p); status != cudaSuccess) return status;
  int device = 0, clusters = 0, shared_limit = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&clusters, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaError_t status = choose_cluster(p, static_cast<uint32_t>(shared_limit));
  if (status != cudaSuccess) return status;
  status = cudaFuncSetAttribute(matvec_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shared_limit);
  if (status != cudaSuccess) return status;

  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {p.cluster_size, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(kMaxWarps * 32);
  config.dynamicSmemBytes = static_cast<size_t>(shared_limit);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  status = count_clusters(p, config, &clusters);
  if (status != cudaSuccess) return status;
  if (clusters < static_cast<int>(p.count)) return cudaErrorNotSupported;

  config.gridDim = dim3(cut_work(p, static_cast<uint32_t>(clusters)) * p.cluster_size);
  config.blockDim = dim3(p.warps * 32);
  config.dynamicSmemBytes = lay_out(p, p.batch);
  config.numAttrs = args.overlap ? 2 : 1;
  return cudaLaunchKernelEx(&config, matvec_kernel, p);
}

}  // namespace reprise::kernels::cuda
