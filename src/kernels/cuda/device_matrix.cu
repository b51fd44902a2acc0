#include <algorithm>

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
  UploadRoom room;  // whose end waits
  return upload(matrix, whole(matrix), pool, room, out);
}

cudaError_t DeviceMatrix::upload(const DeviceImage& image, DeviceMatrix* out) {
  DeviceMatrix made;
  if (const cudaError_t status = made.allocate(image); status != cudaSuccess) return status;
  const Planes to = made.planes();
  const std::vector<std::byte>* from[] = {&image.codes, &image.scales, &image.factors};
  for (size_t i = 0; i < to.size(); ++i) {
    if (from[i]->empty()) continue;
    const cudaError_t status =
        cudaMemcpy(to[i], from[i]->data(), from[i]->size(), cudaMemcpyHostToDevice);
    if (status != cudaSuccess) return status;
  }
  // A copy from pageable memory may still be on its way.
  if (const cudaError_t status = cudaStreamSynchronize(nullptr); status != cudaSuccess) {
    return status;
  }
  *out = std::move(made);
  return cudaSuccess;
}

cudaError_t DeviceMatrix::upload(const PackedMatrix& matrix, const MatrixPart& part,
                                 ThreadPool& pool, UploadRoom& room, DeviceMatrix* out) {
  const DeviceImage shape = image_shape(matrix, part);
  const auto bytes = shape.tile_bytes();
  const size_t tile = bytes[0] + bytes[1] + bytes[2];
  DeviceMatrix made;
  if (const cudaError_t status = made.allocate(shape); status != cudaSuccess) return status;
  if (const cudaError_t status = room.reserve(tile); status != cudaSuccess) return status;
  const size_t step = room.half_bytes() / tile;
  const Planes to = made.planes();
  for (size_t first = 0; first < shape.tiles; first += step) {
    const size_t count = std::min(step, shape.tiles - first);
    std::byte* half = nullptr;
    if (const cudaError_t status = room.next(&half); status != cudaSuccess) return status;
    const std::array<std::byte*, 3> from = {half, half + count * bytes[0],
                                            half + count * (bytes[0] + bytes[1])};
    fill_tiles(matrix, part, shape, first, count, from, pool);
    for (size_t i = 0; i < to.size(); ++i) {
      if (bytes[i] == 0) continue;
      const cudaError_t status = cudaMemcpyAsync(to[i] + first * bytes[i], from[i],
                                                 count * bytes[i], cudaMemcpyHostToDevice, nullptr);
      if (status != cudaSuccess) return status;
    }
    if (const cudaError_t status = room.sent(); status != cudaSuccess) return status;
  }
  *out = std::move(made);
  return cudaSuccess;
}

cudaError_t DeviceMatrix::allocate(const DeviceImage& shape) {
  weights_ = {nullptr,    nullptr,    nullptr,     shape.type,
              shape.rows, shape.cols, shape.tiles, shape.chunks};
  const auto bytes = shape.tile_bytes();
  size_t room = 0;
  for (const size_t plane : bytes) {
    bytes_ += shape.tiles * plane;
    room += padded(shape.tiles * plane);
  }
  void* data = nullptr;
  if (const cudaError_t status = cudaMalloc(&data, room); status != cudaSuccess) return status;
  data_.reset(static_cast<unsigned char*>(data));
  weights_.codes = data_.get();
  weights_.scales = weights_.codes + padded(shape.tiles * bytes[0]);
  weights_.factors = weights_.scales + padded(shape.tiles * bytes[1]);
  return cudaSuccess;
}

DeviceMatrix::Planes DeviceMatrix::planes() const {
  unsigned char* begin = data_.get();
  return {begin, begin + (weights_.scales - begin), begin + (weights_.factors - begin)};
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
