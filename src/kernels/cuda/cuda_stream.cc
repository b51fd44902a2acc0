#include "kernels/cuda/cuda_stream.h"

namespace reprise::kernels::cuda {

Result<CudaStream> CudaStream::create(bool urgent) {
  CudaStream made;
  cudaStream_t stream = nullptr;
  int least = 0, greatest = 0;
  REPRISE_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest), "making a stream");
  REPRISE_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : 0),
               "making a stream");
  made.stream_.reset(stream);
  return made;
}

Result<CudaEvent> CudaEvent::create(bool timed) {
  CudaEvent made;
  cudaEvent_t event = nullptr;
  REPRISE_CUDA(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
               "making an event");
  made.event_.reset(event);
  return made;
}

Status CudaEvent::record(cudaStream_t stream) {
  REPRISE_CUDA(cudaEventRecord(event_.get(), stream), "a pass");
  return {};
}

Status CudaEvent::wait() const {
  REPRISE_CUDA(cudaEventSynchronize(event_.get()), "a pass");
  return {};
}

Status CudaEvent::hold(cudaStream_t stream) const {
  REPRISE_CUDA(cudaStreamWaitEvent(stream, event_.get(), 0), "waiting for copies");
  return {};
}

Result<bool> CudaEvent::reached() const {
  const cudaError_t status = cudaEventQuery(event_.get());
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // no failure: not kept for later calls
    return false;
  }
  REPRISE_CUDA(status, "a pass");
  return true;
}

Result<double> CudaEvent::ms_since(const CudaEvent& earlier) const {
  float ms = 0.0f;
  REPRISE_CUDA(cudaEventElapsedTime(&ms, earlier.event_.get(), event_.get()), "a pass");
  return ms;
}

}  // namespace reprise::kernels::cuda
