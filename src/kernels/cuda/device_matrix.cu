#include "kernels/cuda/dequantize.cuh"
#include "kernels/cuda/device_matrix.h"
#include "kernels/cuda/row_math.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr size_t kAlignment = 256;

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A block per row.
__global__ __launch_bounds__(kThreads) void dequantize_kernel(
    const __grid_constant__ DeviceWeights w, uint32_t first_row, __nv_bfloat16* out) {
  out += size_t{blockIdx.x} * w.cols;
  const auto put = [&](uint32_t column, float4 v) {
    if (w.cols % 4 == 0) {
      store_four<true>(out, column, w.cols, v);
    } else {
      store_four<false>(out, column, w.cols, v);
    }
  };
  with_format(w.type, [&](auto format) {
    for (uint32_t index = threadIdx.x; index < w.chunks * 4; index += kThreads) {
      dequantize_piece<decltype(format)>(w, first_row + blockIdx.x, index, put);
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
  dequantize_kernel<<<static_cast<uint32_t>(rows), kThreads, 0, stream>>>(
      matrix.weights(), static_cast<uint32_t>(first_row), out);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda
