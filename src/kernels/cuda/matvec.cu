// Tensor cores multiply 16 rows of weights, as codes, by up to 8 rows of x, whose high and low
// bytes are two operands; scales come after, in float. Weights that are no codes are the second
// operand, x in bf16 and what rounding left of it the first. Tiles of rows go to blocks in turn, of
// which the device holds all at once; a block's warps share the columns of a tile, for long rows
// with other blocks of a cluster. A warp makes ready the x of its columns alone: nothing waits for
// other warps until the sums of a round of tiles are there.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matvec_kernel.cuh"

namespace reprise::kernels::cuda {
namespace {

using namespace matvec_detail;

using Kernel = void (*)(Params);

template <class F>
Kernel kernel_of(bool alone) {
  if constexpr (has_product_of_one(F::kValue)) {
    if (alone) return matvec_kernel<F, true>;
  }
  return matvec_kernel<F, false>;
}

template <TensorType... types>
Kernel kernel_of(const DeviceFormat& format, bool alone) {
  Kernel kernel = nullptr;
  ((kernel = format == kFormatOf<types> ? kernel_of<Format<kFormatOf<types>>>(alone) : kernel),
   ...);
  return kernel;
}

Kernel choose_kernel(const Params& p) {
  using enum TensorType;
  if (p.mixed) return matvec_kernel<AnyFormat, false>;
  const DeviceFormat format = device_format(p.parts[0].w.type);
  return kernel_of<kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_1, kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K,
                   kIQ4_NL>(format, p.alone);
}

uint32_t divide_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

uint64_t part_bytes(const DeviceWeights& w) {
  const uint32_t scales = kTileRows * device_format(w.type).chunk_scale_bytes();
  return uint64_t{w.tiles} * w.chunks * (kUnitBytes + scales);
}

// Cuts rows among the blocks of a cluster and their warps; returns the number of warps.
uint32_t cut_rows(Part& part, uint32_t cluster_size) {
  const DeviceFormat format = device_format(part.w.type);
  part.sum_columns = format.has_min ? format.group : 0;
  const uint32_t read_chunks = format.quantized() ? 1 : 2;
  part.reads = divide_up(part.w.chunks, read_chunks);
  part.slice = divide_up(part.reads, cluster_size);
  part.share = divide_up(part.slice, block_warps(format));
  part.share_columns = part.share * read_chunks * format.chunk_columns();
  return divide_up(part.slice, part.share);
}

uint32_t ring_bytes(const Part& part) {
  const DeviceFormat format = device_format(part.w.type);
  return ring_stages(format) * read_bytes(format);
}

// Shared memory that all parts need; notes where things are.
uint32_t lay_out(Params& p, uint32_t batch) {
  p.round_outputs = kMaxRoundOutputs;
  for (uint32_t i = 0; i < p.count; ++i) {
    const DeviceFormat format = device_format(p.parts[i].w.type);
    p.round_outputs = std::min(p.round_outputs, round_outputs(format, batch));
  }
  uint32_t bytes = 0;
  for (uint32_t i = 0; i < p.count; ++i) {
    Part& part = p.parts[i];
    const bool codes = device_format(part.w.type).quantized();
    const uint32_t columns = part.share_columns * divide_up(part.slice, part.share);
    part.ring_bytes = ring_bytes(part);
    part.input_at = sizeof(Shared) + RoundSums::bytes(p) + p.warps * part.ring_bytes;
    // Two rows lie in different banks.
    part.input_stride = codes ? divide_up(columns, 64) * 128 + 64 : columns * 4 + 64;
    part.units_at = part.input_at + batch * part.input_stride;
    part.sums_at = part.units_at + (codes ? columns / 32 * kMatvecBatch * 4 : 0);
    const uint32_t sums = part.sum_columns == 0 ? 0 : columns / part.sum_columns;
    bytes = std::max(bytes, part.sums_at + sums * kMatvecBatch * 4);
  }
  return bytes;
}

// The fewest blocks that hold a full batch, so that the batch does not change sums; those of one
// row alone differ anyway, and leave room for the next launch. Returns bytes of shared memory; 0 if
// rows are too long.
uint32_t cut_and_lay_out(Params& p, uint32_t limit) {
  constexpr uint32_t kReserved = 1024;  // by the device, of every block
  if (p.alone) limit = (limit - kReserved) / 2;
  for (p.cluster_bits = 0; p.cluster_bits <= 3; ++p.cluster_bits) {
    p.cluster_size = 1u << p.cluster_bits;
    p.warps = 0;
    for (uint32_t i = 0; i < p.count; ++i) {
      p.warps = std::max(p.warps, cut_rows(p.parts[i], p.cluster_size));
    }
    if (lay_out(p, p.alone ? 1 : kMatvecBatch) <= limit) return lay_out(p, p.batch);
  }
  return 0;
}

// Gives every part clusters in proportion to its bytes; returns their number.
uint32_t spread_tiles(Params& p, uint32_t available) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < p.count; ++i) bytes += part_bytes(p.parts[i].w);
  uint32_t clusters = 0;
  p.round_tiles = 0;
  for (uint32_t i = 0; i < p.count; ++i) {
    Part& part = p.parts[i];
    const auto share = static_cast<uint32_t>(available * part_bytes(part.w) / bytes);
    part.first_cluster = clusters;
    part.clusters = std::clamp(share, 1u, part.w.tiles);
    p.round_tiles = std::max(p.round_tiles, divide_up(part.w.tiles, part.clusters));
    clusters += part.clusters;
  }
  p.round_tiles = std::min(p.round_tiles, p.round_outputs / kTileRows / p.batch);
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
    p->mixed |= device_format(part.w.type) != device_format(p->parts[0].w.type);
  }
  p->alone = args.batch == 1 && !p->mixed && has_product_of_one(device_format(p->parts[0].w.type));
  p->count = args.count;
  p->batch = args.batch;
  p->inverse_batch = 65536 / args.batch + 1;
  p->cols = p->parts[0].w.cols;
  p->x = input.x;
  p->stride = input.stride;
  p->second = norm ? input.norm_weight : input.up;
  p->second_stride = gated ? input.stride : 0;
  p->norm = norm;
  p->gated = gated;
  p->norm_eps = input.norm_eps;
  p->inverse_cols = 1.0f / static_cast<float>(p->cols);
  p->activation = input.activation;
  p->aligned = aligned(p->x) && aligned(p->second) && p->stride % 4 == 0 && p->cols % 4 == 0;
  return cudaSuccess;
}

// Shared memory of a block, such that a multiprocessor holds as many as it should. Products of
// codes leave room for the next launch, unless they take so long that it does not matter, or
// clusters are so large that two launches would get in each other's way.
uint32_t spread_bytes(const Params& p, uint32_t bytes, const DeviceLimits& device) {
  constexpr uint32_t kManyTiles = 16;
  uint32_t tiles = 0;
  for (uint32_t i = 0; i < p.count; ++i) tiles += p.parts[i].w.tiles;
  const bool many = tiles > kManyTiles * device.multiprocessors / p.cluster_size;
  const bool codes = device_format(p.parts[0].w.type).quantized();
  if (!codes || many || p.cluster_size > 2) return bytes;
  const uint32_t blocks = std::max(1u, kWarps / p.warps);
  return std::max(bytes, static_cast<uint32_t>(device.shared_bytes / (blocks + 1)) + 1);
}

// That the device holds at a time.
cudaError_t count_clusters(const Params& p, Kernel kernel, const cudaLaunchConfig_t& config,
                           const DeviceLimits& device, int* clusters) {
  if (p.cluster_size > 1) return cudaOccupancyMaxActiveClusters(clusters, kernel, &config);
  int blocks = 0;
  const cudaError_t status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, kernel, static_cast<int>(config.blockDim.x), config.dynamicSmemBytes);
  *clusters = blocks * static_cast<int>(device.multiprocessors);
  return status;
}

}  // namespace

bool fits_matvec(MatvecArgs args) {
  args.input = {};
  for (const uint32_t batch : {1u, kMatvecBatch}) {
    Params p = {};
    args.batch = batch;
    if (make_params(args, &p) != cudaSuccess) return false;
    if (cut_and_lay_out(p, static_cast<uint32_t>(device_limits().shared_bytes)) == 0) return false;
  }
  return true;
}

cudaError_t matvec(const MatvecArgs& args, cudaStream_t stream) {
  Params p = {};
  if (const cudaError_t status = make_params(args, &p); status != cudaSuccess) return status;
  const DeviceLimits device = device_limits();
  uint32_t shared_bytes = cut_and_lay_out(p, static_cast<uint32_t>(device.shared_bytes));
  if (shared_bytes == 0) return cudaErrorNotSupported;
  // Small blocks of two launches would crowd some multiprocessors and leave others idle.
  shared_bytes = std::max(shared_bytes, static_cast<uint32_t>(device.shared_bytes / 4));
  const uint32_t spread = spread_bytes(p, shared_bytes, device);
  const Kernel kernel = choose_kernel(p);
  cudaError_t status = allow_all_shared(kernel);
  if (status != cudaSuccess) return status;

  cudaLaunchAttribute attributes[3] = {most_shared()};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(p.cluster_size);
  config.blockDim = dim3(p.warps * 32);
  config.dynamicSmemBytes = spread;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  if (p.cluster_size > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {p.cluster_size, 1, 1};
  }
  int clusters = 0;
  status = count_clusters(p, kernel, config, device, &clusters);
  if (status != cudaSuccess) return status;
  if (clusters == 0) return cudaErrorNotSupported;
  if (!args.apart) config.dynamicSmemBytes = shared_bytes;
  if (args.overlap) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  config.gridDim = dim3(spread_tiles(p, static_cast<uint32_t>(clusters)) * p.cluster_size);
  return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace reprise::kernels::cuda
