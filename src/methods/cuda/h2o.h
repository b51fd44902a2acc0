// H2O on a CUDA device; see methods/baselines/h2o.h.
#pragma once

#include "methods/baselines/h2o.h"
#include "methods/cuda/evicting.h"

namespace reprise {

/// Tokens that leave the recent ones go to side pages at once, also before the budget is full; what
/// is read and dropped is the same.
class DeviceH2o : public DeviceEvicting {
 public:
  DeviceH2o(const H2oPolicy& policy, const ModelConfig& config);

  Status reserve(const DeviceRoom& room) override;
  Status adopt(const PagedKv& kv, const kernels::cuda::PageIds& pages,
               cudaStream_t stream) override;
  Status select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t stream) override;
  uint64_t index_bytes_read(const DeviceRow& row) const override;

 private:
  int32_t voters(const EvictingPolicy&, int32_t /*prompt_end*/) const override { return observe_; }
  std::optional<Choice> choice(const EvictingPolicy& host, const Kept& kept,
                               int32_t end) const override;
  Status plan_row(EvictingPolicy& host, State& state, int32_t position, PagePool& pool) override;
  Status own_state(State& state, const State* from, cudaStream_t stream) override;
  Status score(const Ranking& ranking, cudaStream_t stream) override;
  void keep_weights(const Ranking& ranking, kernels::cuda::CompactKeysArgs& args) const override;
  /// Of a layer.
  size_t weights_at(uint32_t layer) const;

  int32_t observe_;
  bool per_row_;
  uint64_t tile_bytes_ = 0;                                       // of the keys of a page and head
  kernels::cuda::DeviceBuffer<kernels::cuda::KeyWeight> summed_;  // [n_kv_head, stride]
  kernels::cuda::DeviceBuffer<float> logits_;                     // as H2oStepArgs
};

}  // namespace reprise
