#include "kernels/cuda/upload_room.h"

#include <algorithm>

namespace reprise::kernels::cuda {

UploadRoom::~UploadRoom() {
  for (cudaEvent_t event : copied_) {
    if (event == nullptr) continue;
    cudaEventSynchronize(event);  // nothing is freed that is being copied
    cudaEventDestroy(event);
  }
}

cudaError_t UploadRoom::reserve(size_t bytes) {
  if (bytes <= half_bytes_) return cudaSuccess;
  for (cudaEvent_t& event : copied_) {
    const cudaError_t status = event == nullptr
                                   ? cudaEventCreateWithFlags(&event, cudaEventDisableTiming)
                                   : cudaEventSynchronize(event);
    if (status != cudaSuccess) return status;
  }
  memory_ = nullptr;
  half_bytes_ = 0;
  const size_t half = std::max(kHalfBytes, bytes);
  void* memory = nullptr;
  if (const cudaError_t status = cudaMallocHost(&memory, 2 * half); status != cudaSuccess) {
    return status;
  }
  memory_.reset(static_cast<std::byte*>(memory));
  half_bytes_ = half;
  return cudaSuccess;
}

cudaError_t UploadRoom::next(std::byte** half) {
  *half = memory_.get() + turn_ * half_bytes_;
  return cudaEventSynchronize(copied_[turn_]);
}

cudaError_t UploadRoom::sent() {
  const cudaError_t status = cudaEventRecord(copied_[turn_], nullptr);
  turn_ ^= 1;
  return status;
}

}  // namespace reprise::kernels::cuda
