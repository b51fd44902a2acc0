// Quest on a CUDA device; see methods/baselines/quest.h.
#pragma once

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/page_bounds.h"
#include "methods/baselines/quest.h"

namespace reprise {

/// Bounds take a sixteenth of what 16-bit pages take, for the whole pool.
class DeviceQuest : public DevicePolicy {
 public:
  /// numbered: lists say which pages of the sequence they name.
  DeviceQuest(const QuestOptions& options, const ModelConfig& config, bool numbered = false);

  Status reserve(const DeviceRoom& room) override;
  Status adopt(const PagedKv& kv, const kernels::cuda::PageIds& pages,
               cudaStream_t stream) override;
  Status begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) override;
  Status after_prefill_store(const DeviceRows& rows, uint32_t layer, const PagedKv& kv,
                             cudaStream_t stream) override;
  Status select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t stream) override;
  bool chooses_pages() const override { return true; }
  uint64_t keys_read(const DeviceRow& row) const override;
  uint64_t index_bytes_read(const DeviceRow& row) const override;

 private:
  kernels::cuda::PageBoundsArgs bounds_args(const DeviceRows& rows, const PagedKv& kv) const;

  uint32_t budget_pages_, sink_pages_, n_layer_, n_kv_head_, head_dim_;
  bool numbered_;
  uint32_t list_capacity_ = 0;
  uint64_t pool_pages_ = 0;
  kernels::cuda::DeviceBuffer<__nv_bfloat16> bounds_;  // [pool_pages, n_kv_head, 2, head_dim]
  kernels::cuda::DeviceBuffer<float> scores_;          // [sequences, n_kv_head, capacity]
  kernels::cuda::DeviceBuffer<uint32_t> lists_;        // [sequences, n_kv_head, list_capacity]
  kernels::cuda::DeviceBuffer<uint32_t> numbers_;      // as lists_, if numbered_
  kernels::cuda::DeviceBuffer<int32_t> keys_;          // [sequences, n_kv_head]
};

}  // namespace reprise
