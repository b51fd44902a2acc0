#include "engine/cuda/step_graph.h"

#include "base/try.h"

namespace reprise {

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
