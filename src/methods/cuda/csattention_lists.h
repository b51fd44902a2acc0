// CSAttention's lists (mode=paper and mode=lists) on a CUDA device; see
// methods/csattention/centroid_lists.h.
#pragma once

#include <memory>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/staged_array.h"
#include "methods/cuda/list_index.h"

namespace reprise {

/// Every query head has keys of its own, which are copied together before they are read; sinks and
/// recent keys are read in place. An index is made at the end of a prompt, from its queries; an
/// answer's keys enter the lists inside of captured steps.
class DeviceCentroidLists : public DevicePolicy {
 public:
  /// kUnsupported names options that are not there.
  static Result<std::unique_ptr<DevicePolicy>> create(const CsAttentionPolicy& policy,
                                                      const ModelConfig& config);

  Status reserve(const DeviceRoom& room) override;
  Status plan(const DevicePlan& plan, cudaStream_t stream) override;
  Status begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) override;
  bool attends() const override { return true; }
  bool reads_plain_queries() const override { return false; }
  Status attend(const DeviceQueries& queries, const DeviceResult& result,
                cudaStream_t stream) override;
  Status after_prefill(const DevicePrompt& prompt, cudaStream_t stream) override;
  /// At most: query heads of a KV head may have chosen the same keys.
  uint64_t keys_read(const DeviceRow& row) const override;
  uint64_t index_bytes_read(const DeviceRow& row) const override;

 private:
  /// A step of the pass that is being planned.
  struct Step {
    const CsAttentionPolicy* host = nullptr;
    DeviceListIndex* index = nullptr;  // null: another policy's, or there is no room
    int32_t prompt_end = 0;
  };

  DeviceCentroidLists(const CsAttentionPolicy& policy, const ModelConfig& config);
  Status reserve_search(uint64_t tokens);
  Status reserve_side();
  Result<DeviceListIndex*> index_of(const CsAttentionPolicy& host, cudaStream_t stream);
  Status plan_prompt(const SequenceStep& step, int32_t position, Step& planned);
  kernels::cuda::ListIndex plan_row(int32_t position, const Step& planned) const;
  kernels::cuda::ListedRows rows_from(uint32_t first, uint32_t count) const;
  uint32_t list_length(int32_t end) const;
  Status sample(const Step& step, const DevicePrompt& prompt, cudaStream_t stream) const;
  /// Makes a layer's index of the samples and the keys before an end.
  Status build(const Step& step, const DevicePrompt& prompt, int32_t end,
               cudaStream_t stream) const;
  kernels::cuda::ListSearchArgs search_args(const DeviceQueries& queries) const;
  /// Whether a row does not read everything.
  bool searches(const DeviceRow& row, kernels::cuda::CodeRange* range) const;

  const ModelConfig& config_;
  CentroidListsOptions options_;
  kernels::cuda::CodeRules rules_;
  kernels::cuda::ListShape shape_;
  IndexedLayers layers_;
  uint32_t rows_ = 0, capacity_ = 0, pick_capacity_ = 0;
  std::vector<Step> steps_;
  std::vector<kernels::cuda::ListIndex> host_rows_;  // [rows]
  kernels::cuda::StagedArray<kernels::cuda::ListIndex> sent_rows_;
  kernels::cuda::DeviceBuffer<uint64_t> draws_;  // see TrainCentroidsArgs
  // Scratch of builds and of searches.
  kernels::cuda::DeviceBuffer<float> points_, scores_;
  kernels::cuda::DeviceBuffer<__half> products_;
  kernels::cuda::DeviceBuffer<kernels::cuda::ListAtoms> atoms_;
  kernels::cuda::DeviceBuffer<uint64_t> sums_;
  // What is read: see ListSearchArgs and GatherKeysArgs.
  kernels::cuda::DeviceBuffer<uint32_t> picks_, lists_, side_lists_;
  kernels::cuda::DeviceBuffer<int32_t> picked_, keys_;
  kernels::cuda::DeviceBuffer<std::byte> side_;
  kernels::cuda::DeviceBuffer<float> side_out_, side_lse_;
  kernels::cuda::DeviceBuffer<std::byte> workspace_, side_workspace_;
};

}  // namespace reprise
