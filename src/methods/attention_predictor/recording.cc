#include "methods/attention_predictor/recording.h"

#include <algorithm>

#include "attention/executor.h"
#include "base/try.h"
#include "methods/attention_predictor/block_scores.h"

namespace reprise {
namespace {

constexpr size_t kChunk = 256;

/// Reads every key and writes down how attention is spread.
class Recorder : public Policy {
 public:
  Recorder(const ModelConfig& config, int32_t first, bool largest)
      : sums_(BlockPool::kSum, config), largest_(BlockPool::kMax, config) {
    recording.first = first;
    recording.layers.resize(config.n_layer);
    if (largest) recording.largest.resize(config.n_layer);
  }
  std::unique_ptr<Policy> fork() const override { return std::make_unique<Recorder>(*this); }
  void select(const QueryRows& rows, Selection&) override {
    record(rows, sums_, recording.layers[rows.layer]);
    if (!recording.largest.empty()) record(rows, largest_, recording.largest[rows.layer]);
  }

  Recording recording;

 private:
  void record(const QueryRows& rows, const BlockScores& scores, std::vector<ScoreRow>& recorded) {
    for (int32_t at = std::max(rows.first(), recording.first); at < rows.end();) {
      const auto count = std::min(BlockScores::kRows, static_cast<size_t>(rows.end() - at));
      recorded.resize(recorded.size() + count);
      scores.of_all(rows, at, std::span(recorded).last(count));
      at += static_cast<int32_t>(count);
    }
  }

  BlockScores sums_, largest_;
};

std::vector<const RopeTable*> layer_ropes(const Model& model) {
  std::vector<const RopeTable*> ropes;
  for (uint32_t layer = 0; layer < model.config().n_layer; ++layer) {
    ropes.push_back(&model.rope(layer));
  }
  return ropes;
}

}  // namespace

Result<Recording> record_attention(Model& model, ThreadPool& pool, std::span<const int32_t> tokens,
                                   size_t rows, bool largest, const ProgressFn& progress) {
  const ModelConfig& config = model.config();
  const kernels::KvLayout layout = {kernels::KvType::kBF16, config.n_kv_head, config.head_dim};
  const uint64_t blocks = tokens.size() / kPageTokens + 2;
  REPRISE_TRY(PagePool pages, PagePool::create(layout, config.n_layer,
                                               blocks * config.n_layer * layout.page_bytes()));
  const auto ropes = layer_ropes(model);
  CpuExecutor executor(config, ropes, pool);
  SequenceKv kv(pages);
  const auto end = static_cast<int32_t>(tokens.size());
  Recorder recorder(config, end - static_cast<int32_t>(std::min(rows, tokens.size())), largest);
  for (size_t at = 0; at < tokens.size(); at += kChunk) {
    if (!progress({"record", at, tokens.size(), "tokens"})) {
      return fail(ErrorCode::kCancelled, "stopped while attention was recorded");
    }
    const size_t count = std::min(kChunk, tokens.size() - at);
    std::vector<Row> batch;
    for (size_t i = at; i < at + count; ++i)
      batch.push_back({0, static_cast<int32_t>(i), tokens[i]});
    REPRISE_CHECK(kv.reserve(count));
    const SequenceStep step = {
        &kv, &recorder, 0, static_cast<uint32_t>(count), kernels::Phase::kPrefill, end};
    executor.begin(batch, {&step, 1});
    REPRISE_CHECK(model.forward({batch, 0, {}}, executor, nullptr));
    kv.commit(count);
  }
  return std::move(recorder.recording);
}

}  // namespace reprise
