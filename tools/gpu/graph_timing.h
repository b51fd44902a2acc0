// What the measuring programs of this folder share.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

inline void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

/// A CUDA graph of so many launches.
class TimedGraph {
 public:
  template <class Launches>
  TimedGraph(size_t count, Launches&& launches) : count_(static_cast<double>(count)) {
    cudaGraph_t graph;
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (size_t i = 0; i < count; ++i) launches(i, stream_);
    check(cudaStreamEndCapture(stream_, &graph));
    check(cudaGraphInstantiate(&exec_, graph, 0));
    check(cudaGraphDestroy(graph));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  ~TimedGraph() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaGraphExecDestroy(exec_);
    cudaStreamDestroy(stream_);
  }
  TimedGraph(const TimedGraph&) = delete;
  TimedGraph& operator=(const TimedGraph&) = delete;

  /// Microseconds of a launch.
  double replay() const {
    float ms = 0.0f;
    check(cudaEventRecord(begin_, stream_));
    check(cudaGraphLaunch(exec_, stream_));
    check(cudaEventRecord(end_, stream_));
    check(cudaEventSynchronize(end_));
    check(cudaEventElapsedTime(&ms, begin_, end_));
    return ms * 1e3 / count_;
  }

 private:
  double count_;
  cudaStream_t stream_;
  cudaGraphExec_t exec_;
  cudaEvent_t begin_, end_;
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Microseconds of one of count launches that a CUDA graph holds, after replays to warm up.
template <class Launches>
double time_graph(size_t count, int warm_up, Launches&& launches) {
  constexpr size_t kReplays = 15;
  const TimedGraph graph(count, launches);
  for (int i = 0; i < warm_up; ++i) graph.replay();
  std::vector<double> times(kReplays);
  for (double& us : times) us = graph.replay();
  return median(times);
}
