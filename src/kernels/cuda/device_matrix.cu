#include "kernels/cuda/device_matrix.h"
#include "kernels/cuda/weight_codes.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kDequantizeThreads = 128;
constexpr size_t kAlignment = 256;

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Columns from column on, those that the row has.
__device__ void store_four(__nv_bfloat16* row, uint32_t cols, uint32_t column, float4 v) {
  if (cols % 4 == 0 && column < cols) {
    *reinterpret_cast<uint2*>(row + column) =
        make_uint2(pack<__nv_bfloat16>(v.x, v.y), pack<__nv_bfloat16>(v.z, v.w));
    return;
  }
  const float values[4] = {v.x, v.y, v.z, v.w};
  for (uint32_t i = 0; i < 4; ++i) {
    if (column + i < cols) row[column + i] = __float2bfloat16_rn(values[i]);
  }
}

__device__ float2 floats(uint32_t pair) { return {low_float(pair), high_float(pair)}; }

template <class F>
__device__ void dequantize_quantized(const DeviceWeights& w, uint32_t row, uint32_t index,
                                     __nv_bfloat16* out) {
  const uint32_t chunk = index / 4, t = index % 4, tile = row / kTileRows, r = row % kTileRows;
  const size_t unit = size_t{tile} * w.chunks + chunk;
  const auto piece = *reinterpret_cast<const uint4*>(w.codes + unit * kUnitBytes + r * kChunkBytes +
                                                     t * sizeof(uint4));
  const size_t factors = size_t{tile} * (w.chunks / F::kFactorChunks) + chunk / F::kFactorChunks;
  const RowScales<F> scales(w.scales + (unit * kTileRows + r) * F::kChunkScaleBytes,
                            w.factors + factors * kFactorBytes + r * 4);
  for (int block = 0; block < static_cast<int>(F::kChunkColumns / 32); ++block) {
    uint32_t pairs[4];
    code_pairs<F>(piece, block, pairs);
    for (int step = 0; step < 2; ++step) {
      const int column = block * 32 + step * 16;
      const float2 s = scales.get(column / static_cast<int>(F::kValue.group));
      const auto weight = [&](float code) { return s.x * (code - F::kZero) + s.y; };
      const float2 a = floats(pairs[2 * step]), b = floats(pairs[2 * step + 1]);
      store_four(out, w.cols, chunk * F::kChunkColumns + column + t * 4,
                 {weight(a.x), weight(a.y), weight(b.x), weight(b.y)});
    }
  }
}

// Of 16 bytes of a row.
template <class F>
__device__ void dequantize_piece(const DeviceWeights& w, uint32_t row, uint32_t index,
                                 __nv_bfloat16* out) {
  if constexpr (F::kQuantized) {
    return dequantize_quantized<F>(w, row, index, out);
  } else {
    const auto* codes = reinterpret_cast<const uint4*>(w.codes) + size_t{row} * w.chunks * 4;
    const uint4 piece = codes[index];
    if constexpr (F::kValue.codes == Codes::kF32) {
      store_four(out, w.cols, index * 4, reinterpret_cast<const float4&>(piece));
    } else {
      for (int half = 0; half < 2; ++half) {
        const uint32_t low = word_of(piece, 2 * half), high = word_of(piece, 2 * half + 1);
        float2 a = floats(low), b = floats(high);
        if constexpr (F::kValue.codes == Codes::kF16) {
          a = __half22float2(reinterpret_cast<const __half2&>(low));
          b = __half22float2(reinterpret_cast<const __half2&>(high));
        }
        store_four(out, w.cols, index * 8 + half * 4, {a.x, a.y, b.x, b.y});
      }
    }
  }
}

// A block per row.
__global__ __launch_bounds__(kDequantizeThreads) void dequantize_kernel(
    const __grid_constant__ DeviceWeights w, uint32_t first_row, __nv_bfloat16* out) {
  out += size_t{blockIdx.x} * w.cols;
  with_format(w.type, [&](auto format) {
    for (uint32_t index = threadIdx.x; index < w.chunks * 4; index += kDequantizeThreads) {
      dequantize_piece<decltype(format)>(w, first_row + blockIdx.x, index, out);
    }
  });
}

}  // namespace

cudaError_t DeviceMatrix::upload(const PackedMatrix& matrix, ThreadPool& pool, DeviceMatrix* out) {
  return upload(device_image(matrix, pool), out);
}

cudaError_t DeviceMatrix::upload(const DeviceImage& image, DeviceMatrix* out) {
  const std::vector<std::byte>* planes[3] = {&image.codes, &image.scales, &image.factors};
  size_t bytes = 0;
  for (const auto* plane : planes) bytes += padded(plane->size());
  void* data = nullptr;
  if (const cudaError_t status = cudaMalloc(&data, bytes); status != cudaSuccess) return status;
  DeviceMatrix made;
  made.data_.reset(static_cast<unsigned char*>(data));
  unsigned char* at[3];
  size_t offset = 0;
  for (int i = 0; i < 3; ++i) {
    at[i] = made.data_.get() + offset;
    offset += padded(planes[i]->size());
    made.bytes_ += planes[i]->size();
    if (planes[i]->empty()) continue;
    const cudaError_t status =
        cudaMemcpy(at[i], planes[i]->data(), planes[i]->size(), cudaMemcpyHostToDevice);
    if (status != cudaSuccess) return status;
  }
  // A copy from pageable memory may still be on its way.
  if (const cudaError_t status = cudaStreamSynchronize(nullptr); status != cudaSuccess) {
    return status;
  }
  made.weights_ = {at[0],      at[1],      at[2],       image.type,
                   image.rows, image.cols, image.tiles, image.chunks};
  *out = std::move(made);
  return cudaSuccess;
}

cudaError_t dequantize(const DeviceMatrix& matrix, size_t first_row, size_t rows,
                       __nv_bfloat16* out, cudaStream_t stream) {
  if (first_row + rows > matrix.rows()) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  dequantize_kernel<<<static_cast<uint32_t>(rows), kDequantizeThreads, 0, stream>>>(
      matrix.weights(), static_cast<uint32_t>(first_row), out);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda
