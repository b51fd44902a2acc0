// CSAttention on a CUDA device; see methods/csattention/csattention.h.
#pragma once

#include <memory>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/staged_array.h"
#include "methods/cuda/code_pool.h"

namespace reprise {

/// What is read of a sequence.
kernels::cuda::CodeRules code_rules(const CsAttentionPolicy& policy);

/// Keys are coded as on the host. Indexes are made and take in keys of prompts outside of captured
/// steps, as soon as a layer's keys are stored; codes of decoded keys are made inside. An index
/// that an answer outgrows is made anew before a step, from the rows and keys before it.
class DeviceCsAttention : public DevicePolicy {
 public:
  /// numbered: lists say which pages of the sequence they name.
  DeviceCsAttention(const CsAttentionPolicy& policy, const ModelConfig& config,
                    bool numbered = false);
  /// kUnsupported names options that are not there.
  static Status check(const CsAttentionPolicy& policy, const ModelConfig& config);

  Status reserve(const DeviceRoom& room) override;
  Status plan(const DevicePlan& plan, cudaStream_t stream) override;
  uint64_t variant(const DeviceGroup& group) const override;
  Status begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) override;
  Status select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t stream) override;
  bool chooses_pages() const override { return true; }
  Status after_prefill(const DevicePrompt& prompt, cudaStream_t stream) override;
  uint64_t keys_read(const DeviceRow& row) const override;
  /// Of all planes: which of them tell too little to be read is known on the device.
  uint64_t index_bytes_read(const DeviceRow& row) const override;

 private:
  /// A step of the pass that is being planned.
  struct Step {
    const CsAttentionPolicy* host = nullptr;  // null: another policy's, or there is no room
    DeviceCodeIndex* index = nullptr;
    const SequenceKv* kv = nullptr;
    int32_t prompt_end = 0;
    uint64_t due = 0;  // turns of the layers that search or learn
  };

  Result<DeviceCodeIndex*> index_of(const CsAttentionPolicy& host, cudaStream_t stream);
  Status plan_prompt(const SequenceStep& step, int32_t position, Step& planned,
                     cudaStream_t stream);
  Status plan_row(int32_t position, Step& planned, cudaStream_t stream,
                  kernels::cuda::CodedRow& row);
  /// Makes a layer's codebook from what was learnt.
  Status build(const Step& step, uint32_t at, kernels::cuda::PagedKv kv, int32_t end,
               cudaStream_t stream);
  kernels::cuda::TrainPages sample(const SequenceKv& kv, uint32_t layer, int32_t end) const;
  bool show(uint32_t row, const Step& step, const kernels::cuda::CodedRow& shown);
  Status send_rows(uint32_t turn, cudaStream_t stream);
  kernels::cuda::CodedRows rows_from(uint32_t first, uint32_t count) const;
  /// A bit that the layer shares with those that search in the same steps, or soon after.
  uint64_t turn_of(uint32_t layer) const;
  bool compares() const { return rules_.period > 1 && rules_.cosine > -1.0f; }
  Status reserve_lists();
  Status search(const kernels::cuda::CodeSearchArgs& args, cudaStream_t stream) const;
  /// Whether a row does not read everything. last: what its last search was about.
  bool chooses(const DeviceRow& row, kernels::cuda::CodeRange* range,
               kernels::cuda::CodeRange* last) const;

  const ModelConfig& config_;
  kernels::cuda::CodeRules rules_;
  uint32_t clusters_, iterations_;
  bool numbered_;
  std::vector<uint64_t> draws_;  // see TrainCodesArgs
  kernels::cuda::CodeShape shape_;
  IndexedLayers layers_;
  std::shared_ptr<CodePool> pool_ = std::make_shared<CodePool>();
  kernels::cuda::PagedKv kv_;  // of the last pass
  uint32_t rows_ = 0, capacity_ = 0, block_capacity_ = 0;
  std::vector<Step> steps_;
  std::vector<uint64_t> shown_;                     // [rows] stamps
  std::vector<kernels::cuda::CodedRow> host_rows_;  // [rows]
  std::vector<uint32_t> host_blocks_;               // [rows, block_capacity]
  kernels::cuda::StagedArray<kernels::cuda::CodedRow> sent_rows_;
  kernels::cuda::StagedArray<uint32_t> sent_blocks_;
  kernels::cuda::DeviceBuffer<uint2> tops_;  // scratch, see CodeSearchArgs
  kernels::cuda::DeviceBuffer<float2> scales_, parts_;
  kernels::cuda::DeviceBuffer<float> weights_;
  // Of every layer where searches serve several rows, else lists of one, numbers of keys of two.
  kernels::cuda::DeviceBuffer<uint32_t> lists_, numbers_;  // numbers_: if numbered_
  kernels::cuda::DeviceBuffer<int32_t> keys_;
  kernels::cuda::DeviceBuffer<uint32_t> due_;  // [layers, rows]; empty: searches serve one row
  uint32_t pick_capacity_ = 0;
};

}  // namespace reprise
