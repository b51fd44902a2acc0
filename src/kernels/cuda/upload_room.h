// Page-locked memory by way of which weights go to a device.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>

namespace reprise::kernels::cuda {

/// Two halves: one is filled while the other is copied. Belongs to the device that was current when
/// it was first used; copies go in order on its default stream.
class UploadRoom {
 public:
  UploadRoom() = default;
  UploadRoom(const UploadRoom&) = delete;
  UploadRoom& operator=(const UploadRoom&) = delete;
  ~UploadRoom();

  /// Halves of kHalfBytes, or of that many where that is more.
  cudaError_t reserve(size_t bytes);
  size_t half_bytes() const { return half_bytes_; }

  /// The half that was copied longest ago, once that is done.
  cudaError_t next(std::byte** half);
  /// All copies from it are enqueued.
  cudaError_t sent();

 private:
  static constexpr size_t kHalfBytes = size_t{16} << 20;

  struct Free {
    void operator()(std::byte* memory) const { cudaFreeHost(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t half_bytes_ = 0;
  std::array<cudaEvent_t, 2> copied_ = {};
  size_t turn_ = 0;
};

}  // namespace reprise::kernels::cuda
