// Owner of a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <type_traits>

#include "kernels/cuda/device_status.h"

namespace reprise {

/// Work that was captured once and is launched as a whole.
class StepGraph {
 public:
  static Result<StepGraph> capture(cudaStream_t stream, const std::function<Status()>& enqueue);
  Status launch(cudaStream_t stream) const;

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Destroy> graph_;
};

}  // namespace reprise
