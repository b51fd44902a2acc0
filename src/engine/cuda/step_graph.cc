#include "engine/cuda/step_graph.h"

#include "base/try.h"

namespace reprise {

Result<CudaStream> CudaStream::create() {
  CudaStream made;
  cudaStream_t stream = nullptr;
  REPRISE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
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

Result<StepGraph> StepGraph::capture(cudaStream_t stream, const std::function<Status()>& enqueue) {
  REPRISE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capturing a step");
  const Status status = enqueue();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (!status) {
    if (graph != nullptr) cudaGraphDestroy(graph);
    return tl::unexpected<Error>(status.error());
  }
  REPRISE_CUDA(ended, "capturing a step");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  REPRISE_CUDA(error, "preparing a step");
  StepGraph made;
  made.graph_.reset(executable);
  return made;
}

Status StepGraph::launch(cudaStream_t stream) const {
  REPRISE_CUDA(cudaGraphLaunch(graph_.get(), stream), "a step");
  return {};
}

}  // namespace reprise
