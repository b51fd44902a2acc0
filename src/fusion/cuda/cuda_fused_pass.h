// A fused prompt on CUDA devices.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fusion/cuda/fusion_ranks.h"

namespace reprise {

/// Decides on the caller's thread; devices enqueue a layer at a time.
class CudaFusedPass : public FusedPass {
 public:
  CudaFusedPass(FusionRanks& ranks, const FusedJob& job);
  // What is enqueued reads the loader's memory and writes the sequence's pages.
  ~CudaFusedPass() override { ranks_.synchronize(); }

  Status start(std::vector<ChunkLoad> loads);
  Status compute(std::span<const int32_t> positions, const FewReads* few) override;
  Status check(std::span<const int32_t> positions, const RowCheck& check,
               const ChooseFn& choose) override;
  std::span<const float> logits() const override { return ranks_.host_logits.span(); }
  const StoredChunk* failed() const override { return loader_->failed(); }
  const SlowLoad* slow() const override { return loader_->slow(); }
  void add_cost(FusionCost& cost) const override {
    ranks_.synchronize();  // a pass that failed may not have waited for it
    loader_->add_cost(cost);
  }

 private:
  Status send_tables();
  Status store_first_layer(std::span<const int32_t> positions);
  Status begin_few(std::span<const int32_t> positions, const FewReads& few);
  Status store_rows(uint32_t rank, std::span<const int32_t> positions);
  Status run_layer(uint32_t layer);
  /// scorers: [ranks]
  Status score_layer(uint32_t layer, LayerPart part, std::span<RowScorer> scorers);
  Status run(uint32_t first_layer, std::string_view stage);
  Status pace(std::string_view stage, uint32_t layer);
  Status take_logits();
  Status finish();

  FusionRanks& ranks_;
  const FusedJob job_;
  std::vector<LayerRows> rows_;          // [ranks]
  bool has_tables_ = false;              // rows_ do
  uint64_t stage_rows_ = 0;              // of which progress tells
  std::optional<PackedKeys> packed_;     // with few_
  std::vector<FewAttention> few_;        // [ranks], or empty: every row reads all
  std::vector<const RopeTable*> ropes_;  // [n_layer] that loaded keys are rotated by, or none
  std::vector<int32_t> given_;           // rows that are loaded in all layers but the first
  std::unique_ptr<DeviceChunkLoader> loader_;
};

}  // namespace reprise
