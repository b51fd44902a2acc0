#include <algorithm>

#include "attention/executor.h"
#include "engine/backend.h"
#include "fusion/cpu_fusion.h"

namespace reprise {
namespace {

std::vector<const RopeTable*> layer_ropes(const Model& model) {
  std::vector<const RopeTable*> ropes;
  for (uint32_t layer = 0; layer < model.config().n_layer; ++layer) {
    ropes.push_back(&model.rope(layer));
  }
  return ropes;
}

/// Computes when a pass starts.
class CpuBackend : public Backend {
 public:
  CpuBackend(Model& model, ThreadPool& pool, Prefetch prefetch)
      : model_(model), pool_(pool), executor_(model.config(), layer_ropes(model), pool, prefetch) {}

  Status start(const ForwardPass& pass) override {
    const size_t vocab = model_.config().vocab;
    logits_.resize(std::max(logits_.size(), pass.results.size() * vocab));
    logit_rows_.clear();
    for (const RowResult& result : pass.results) logit_rows_.push_back(result.row);
    const auto decode_rows = static_cast<size_t>(std::count_if(
        pass.steps.begin(), pass.steps.end(),
        [](const SequenceStep& step) { return step.phase == kernels::Phase::kDecode; }));
    executor_.begin(pass.rows, pass.steps);
    return model_.forward({pass.rows, decode_rows, logit_rows_}, executor_, logits_.data());
  }
  Status finish() override { return {}; }
  std::span<float> logits(size_t result) override {
    const size_t vocab = model_.config().vocab;
    return std::span(logits_).subspan(result * vocab, vocab);
  }
  int32_t token(size_t) const override { return kChosenToken; }
  bool joins_cells() const override { return true; }
  StepCost cost(size_t step) const override { return executor_.cost(step); }
  Result<std::unique_ptr<FusionDevice>> fusion(uint64_t memory) override {
    if (memory == 0) return cpu_fusion(model_, pool_);
    return fail(ErrorCode::kUnsupported,
                "--store-memory is for --device cuda: here the system's file cache holds chunks; "
                "leave it out");
  }

 private:
  Model& model_;
  ThreadPool& pool_;
  CpuExecutor executor_;
  std::vector<uint32_t> logit_rows_;
  std::vector<float> logits_;  // [results, vocab]
};

}  // namespace

std::unique_ptr<Backend> cpu_backend(Model& model, ThreadPool& pool, Prefetch prefetch) {
  return std::make_unique<CpuBackend>(model, pool, prefetch);
}

}  // namespace reprise
