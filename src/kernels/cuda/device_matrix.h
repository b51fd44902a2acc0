// Weight matrices in the memory of a CUDA device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <array>
#include <memory>

#include "kernels/cuda/device_image.h"
#include "kernels/cuda/upload_room.h"

namespace reprise::kernels::cuda {

/// What kernels get; see device_image.h.
struct DeviceWeights {
  const unsigned char *codes = nullptr, *scales = nullptr, *factors = nullptr;
  TensorType type = TensorType::kF32;
  uint32_t rows = 0, cols = 0, tiles = 0, chunks = 0;
};

/// A matrix [rows, cols] of the current device.
class DeviceMatrix {
 public:
  /// Done when it returns. cudaErrorMemoryAllocation: out is as before.
  static cudaError_t upload(const PackedMatrix& matrix, ThreadPool& pool, DeviceMatrix* out);
  static cudaError_t upload(const DeviceImage& image, DeviceMatrix* out);
  /// Made in the room; enqueued when it returns.
  static cudaError_t upload(const PackedMatrix& matrix, const MatrixPart& part, ThreadPool& pool,
                            UploadRoom& room, DeviceMatrix* out);

  size_t rows() const { return weights_.rows; }
  size_t cols() const { return weights_.cols; }
  TensorType type() const { return weights_.type; }
  /// Bytes that one decode step reads.
  size_t bytes() const { return bytes_; }
  const DeviceWeights& weights() const { return weights_; }
  /// Elements between rows, which lie one after the other at weights().codes; F32, F16 and BF16.
  size_t row_stride() const { return weights_.chunks * device_format(type()).chunk_columns(); }

 private:
  struct Free {
    void operator()(unsigned char* data) const { cudaFree(data); }
  };
  using Planes = std::array<unsigned char*, 3>;  // as DeviceImage::tile_bytes() counts them

  cudaError_t allocate(const DeviceImage& shape);
  Planes planes() const;

  std::unique_ptr<unsigned char, Free> data_;
  DeviceWeights weights_;
  size_t bytes_ = 0;
};

/// out [rows, cols] = weights of rows from first_row on, rounded to bf16; what unpack_row gives,
/// within an ulp of float before rounding.
cudaError_t dequantize(const DeviceMatrix& matrix, size_t first_row, size_t rows,
                       __nv_bfloat16* out, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
