#include "fusion/cpu_fusion.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>

#include "base/float16.h"
#include "base/try.h"
#include "fusion/fused_attention.h"
#include "fusion/question_scores.h"
#include "fusion/row_choice.h"

namespace reprise {
namespace {

// Of a pass that computes; one that chooses has all rows. Weights are expanded once a pass; a
// cancel waits for a layer of it.
constexpr uint32_t kBlock = 2048;

/// Every row reads every key before it.
class ReadsAll : public Policy {
 public:
  explicit ReadsAll(bool position_free) : position_free_(position_free) {}
  std::unique_ptr<Policy> fork() const override { return std::make_unique<ReadsAll>(*this); }
  void select(const QueryRows&, Selection& selection) override { selection.all = true; }
  bool position_free() const override { return position_free_; }

 private:
  bool position_free_;
};

/// Copies keys and values of the last rows, those of a chunk, as they are stored, and passes them
/// on.
class Capture : public AttentionOp {
 public:
  Capture(CpuExecutor& executor, const ChunkIdentity& identity, size_t first, size_t rows)
      : executor_(executor),
        type_(identity.type),
        row_bytes_(identity.row_bytes()),
        values_(size_t{identity.n_kv_head} * identity.head_dim),
        first_(first),
        rows_(rows),
        blocks_(identity.n_layer * 2 * rows_ * row_bytes_) {}

  Status attend(uint32_t layer, float* q, float* k, float* v, float* out) override {
    std::byte* block = &blocks_[layer * 2 * rows_ * row_bytes_];
    for (size_t row = 0; row < rows_; ++row) {
      copy(k + (first_ + row) * values_, block + row * row_bytes_);
      copy(v + (first_ + row) * values_, block + (rows_ + row) * row_bytes_);
    }
    return executor_.attend(layer, q, k, v, out);
  }
  std::vector<std::byte> take() { return std::move(blocks_); }

 private:
  void copy(const float* values, std::byte* out) const {
    if (type_ == kernels::KvType::kF32) {
      std::memcpy(out, values, row_bytes_);
      return;
    }
    auto* narrow = reinterpret_cast<Bf16*>(out);
    for (size_t i = 0; i < values_; ++i) narrow[i] = to_bf16(values[i]);
  }

  CpuExecutor& executor_;
  const kernels::KvType type_;
  const size_t row_bytes_, values_, first_, rows_;
  std::vector<std::byte> blocks_;
};

std::vector<const RopeTable*> layer_ropes(const Model& model) {
  std::vector<const RopeTable*> ropes;
  for (uint32_t layer = 0; layer < model.config().n_layer; ++layer) {
    ropes.push_back(&model.rope(layer));
  }
  return ropes;
}

struct Computing {
  Computing(Model& of, ThreadPool& on)
      : model(of),
        pool(on),
        ropes(layer_ropes(of)),
        executor(of.config(), ropes, on),
        room(ropes) {}

  Model& model;
  ThreadPool& pool;
  std::vector<const RopeTable*> ropes;  // [n_layer]
  CpuExecutor executor;
  LoadRoom room;
  std::vector<float> logits;  // of a row
};

class CpuFusedPass : public FusedPass {
 public:
  CpuFusedPass(Computing& computing, const FusedJob& job, std::vector<ChunkLoad> loads)
      : c_(computing),
        job_(job),
        policy_(job.position_free),
        loader_(std::move(loads), job.kv, !job.position_free, job.prompt.row_ms, c_.room, c_.pool) {
  }

  Status compute(std::span<const int32_t> positions, const FewReads* few) override;
  Status check(std::span<const int32_t> positions, const RowCheck& check,
               const ChooseFn& choose) override;
  std::span<const float> logits() const override { return c_.logits; }
  const StoredChunk* failed() const override { return loader_.failed(); }
  const SlowLoad* slow() const override { return loader_.slow(); }
  void add_cost(FusionCost& cost) const override { loader_.add_cost(cost); }

 private:
  /// last: the prompt's last row is the last one of the pass, and its logits are wanted.
  Status forward(FusedAttention& attention, bool last);
  /// Tells how far a pass's rows are behind a layer's attention, as part of all rows.
  Status pace(std::string_view stage, uint32_t layer, size_t earlier, size_t rows,
              size_t all) const;
  std::vector<float> question_scores(uint32_t layer, std::span<const Row> rows, const float* q,
                                     const RowCheck& check) const;

  Computing& c_;
  const FusedJob job_;
  ReadsAll policy_;
  ChunkLoader loader_;
};

Status CpuFusedPass::forward(FusedAttention& attention, bool last) {
  const uint32_t row = static_cast<uint32_t>(attention.rows().size()) - 1;
  c_.logits.resize(c_.model.config().vocab);
  const std::span<const uint32_t> wanted = {&row, last ? 1u : 0u};
  return c_.model.forward({attention.rows(), 0, wanted}, attention, c_.logits.data());
}

Status CpuFusedPass::pace(std::string_view stage, uint32_t layer, size_t earlier, size_t rows,
                          size_t all) const {
  const uint64_t done = earlier + rows * (layer + 1) / c_.model.config().n_layer;
  if (!job_.progress || job_.progress({stage, done, all, "tokens"})) return {};
  return fail(ErrorCode::kCancelled, "cancelled after computing {} of {} rows", done, all);
}

Status CpuFusedPass::compute(std::span<const int32_t> positions, const FewReads* few) {
  FusedAttention attention(c_.model.config(), c_.executor, loader_, job_.prompt, job_.kv, policy_);
  std::optional<PackedKeys> packed;
  if (few != nullptr) {
    packed.emplace(job_.prompt, *few, positions);
    if (packed->begin(job_.kv.pool(), 0, 0)) attention.set_few(*few, *packed);
  }
  for (size_t first = 0; first < positions.size(); first += kBlock) {
    const size_t rows = std::min<size_t>(kBlock, positions.size() - first);
    FusedAttention::Hooks hooks;
    hooks.each = [&](uint32_t layer) {
      return pace("prefill", layer, first, rows, positions.size());
    };
    attention.set_hooks(std::move(hooks));
    attention.begin(positions.subspan(first, rows));
    REPRISE_CHECK(forward(attention, first + rows == positions.size()));
  }
  return loader_.load_through(c_.model.config().n_layer - 1);
}

std::vector<float> CpuFusedPass::question_scores(uint32_t layer, std::span<const Row> rows,
                                                 const float* q, const RowCheck& check) const {
  const ModelConfig& config = c_.model.config();
  const auto asks = std::ranges::lower_bound(rows, check.question, {}, &Row::position);
  auto first = static_cast<size_t>(asks - rows.begin());
  first = std::max(first, rows.size() - std::min<size_t>(rows.size(), check.window));
  const QuestionRows question = {rows.subspan(first), q + first * config.n_head * config.head_dim};
  const QuestionKeys keys = {config,  c_.ropes,         layer,
                             job_.kv, check.candidates, !job_.position_free};
  return check.score == RowScore::kJoint ? joint_attention(keys, question, c_.pool)
                                         : head_attention(keys, question, c_.pool);
}

Status CpuFusedPass::check(std::span<const int32_t> positions, const RowCheck& check,
                           const ChooseFn& choose) {
  const uint32_t layers = c_.model.config().n_layer;
  FusedAttention attention(c_.model.config(), c_.executor, loader_, job_.prompt, job_.kv, policy_);
  FusedAttention::Hooks hooks;
  REPRISE_TRY(hooks.layers, check_layers(check, c_.model.config(), job_.prompt.end()));
  const uint32_t chooses = hooks.layers.back();
  bool goes_on = false;
  const auto keep = [&](std::span<const float> scores) {
    const std::vector<int32_t> kept = choose(scores);
    goes_on = !kept.empty();
    attention.keep(kept);
  };
  std::vector<float> sums(check.candidates.size());
  if (check.score == RowScore::kValues) {
    hooks.before = [&](uint32_t layer, const float* v) {
      const auto all = value_deviation(layer, attention.rows(), v, job_.kv, c_.pool);
      keep(scores_of(check.candidates, positions, all));
    };
  } else {
    hooks.after = [&](uint32_t layer, const float* q) {
      const auto scores = question_scores(layer, attention.rows(), q, check);
      std::ranges::transform(scores, sums, sums.begin(), std::plus<>());
      if (layer == chooses) keep(sums);
    };
  }
  hooks.each = [&](uint32_t layer) {
    return pace(kChoosing, layer, 0, positions.size(), positions.size());
  };
  attention.set_hooks(std::move(hooks));
  attention.begin(positions);
  REPRISE_CHECK(forward(attention, true));
  return goes_on ? loader_.load_through(layers - 1) : Status();
}

class CpuFusion : public FusionDevice {
 public:
  CpuFusion(Model& model, ThreadPool& pool) : computing_(model, pool) {}

  Result<std::vector<std::byte>> read_chunk(const ChunkIdentity& identity,
                                            const ChunkTokens& tokens, SequenceKv& kv) override;
  Result<std::unique_ptr<FusedPass>> begin(const FusedJob& job,
                                           std::vector<ChunkLoad> loads) override {
    return std::make_unique<CpuFusedPass>(computing_, job, std::move(loads));
  }

 private:
  Computing computing_;
};

Result<std::vector<std::byte>> CpuFusion::read_chunk(const ChunkIdentity& identity,
                                                     const ChunkTokens& tokens, SequenceKv& kv) {
  std::vector<Row> rows;
  const auto known = static_cast<size_t>(kv.length());
  int32_t position = kv.length();
  for (const auto part : {tokens.context.subspan(known), tokens.tokens}) {
    for (const int32_t token : part) rows.push_back({0, position++, token});
  }
  REPRISE_CHECK(reserve_in_memory(kv, rows.size()));
  ReadsAll policy(false);
  const SequenceStep step = {
      &kv, &policy, 0, static_cast<uint32_t>(rows.size()), kernels::Phase::kPrefill, position};
  computing_.executor.begin(rows, {&step, 1});
  Capture capture(computing_.executor, identity, tokens.context.size() - known,
                  tokens.tokens.size());
  REPRISE_CHECK(computing_.model.forward({rows, 0, {}}, capture, nullptr));
  kv.commit(rows.size());
  return capture.take();
}

}  // namespace

std::unique_ptr<FusionDevice> cpu_fusion(Model& model, ThreadPool& pool) {
  return std::make_unique<CpuFusion>(model, pool);
}

}  // namespace reprise
