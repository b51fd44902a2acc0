// Owners of CUDA's streams, events and graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <type_traits>

#include "kernels/cuda/device_status.h"

namespace reprise {

class CudaStream {
 public:
  static Result<CudaStream> create();
  cudaStream_t get() const { return stream_.get(); }

 private:
  struct Destroy {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Destroy> stream_;
};

class CudaEvent {
 public:
  static Result<CudaEvent> create(bool timed);
  Status record(cudaStream_t stream);
  /// Until everything before record() is done.
  Status wait() const;
  /// Whether it is; does not wait.
  Result<bool> reached() const;
  /// Of what was enqueued after an earlier event; both are timed and have been waited for.
  Result<double> ms_since(const CudaEvent& earlier) const;

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy> event_;
};

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
