#include "fusion/fuser.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>

#include "base/float16.h"
#include "base/try.h"
#include "fusion/fused_attention.h"
#include "fusion/row_choice.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

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

/// Copies keys and values of the rows of a chunk as they are stored, and passes them on.
class Capture : public AttentionOp {
 public:
  Capture(CpuExecutor& executor, const ChunkIdentity& identity, const ChunkTokens& tokens)
      : executor_(executor),
        type_(identity.type),
        row_bytes_(identity.row_bytes()),
        values_(size_t{identity.n_kv_head} * identity.head_dim),
        first_(tokens.context.size()),
        rows_(tokens.tokens.size()),
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

std::vector<int32_t> merged(std::span<const int32_t> a, std::span<const int32_t> b) {
  std::vector<int32_t> out;
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

// A chunk right behind the tokens that it was read after has the KV that it would have here.
bool is_prefix(const FusedPrompt& prompt, const PromptChunk& chunk) {
  const auto& context = chunk.stored->record().context;
  return std::ranges::equal(prompt.tokens.first(static_cast<size_t>(chunk.begin)), context);
}

}  // namespace

struct Fuser::Job {
  SequenceKv& kv;
  Policy& policy;
  const ProgressFn& progress;
  int32_t exact;  // leading tokens that kv holds
  ChunkLoader* loader = nullptr;
};

Fuser::Fuser(Model& model, ThreadPool& pool, uint32_t block)
    : model_(model),
      pool_(pool),
      block_(block),
      ropes_(layer_ropes(model)),
      executor_(model.config(), ropes_, pool) {}

Result<std::vector<std::byte>> Fuser::read_chunk(const ChunkIdentity& identity,
                                                 const ChunkTokens& tokens, PagePool& pool) {
  std::vector<Row> rows;
  for (const auto part : {tokens.context, tokens.tokens}) {
    for (const int32_t token : part) {
      rows.push_back({0, static_cast<int32_t>(rows.size()), token});
    }
  }
  SequenceKv kv(pool);
  REPRISE_CHECK(kv.reserve(rows.size()));
  ReadsAll policy(false);
  const SequenceStep step = {&kv,
                             &policy,
                             0,
                             static_cast<uint32_t>(rows.size()),
                             kernels::Phase::kPrefill,
                             static_cast<int32_t>(rows.size())};
  executor_.begin(rows, {&step, 1});
  Capture capture(executor_, identity, tokens);
  REPRISE_CHECK(model_.forward({rows, 0, {}}, capture, nullptr));
  return capture.take();
}

Fuser::Plan Fuser::plan(const FusedPrompt& prompt, const FusionMethod& method,
                        int32_t exact) const {
  Plan plan;
  const bool reuse = !std::holds_alternative<NoFusion>(method);
  int32_t at = exact;
  const auto compute_to = [&](int32_t end) {
    for (; at < end; ++at) plan.computed.push_back(at);
  };
  for (const PromptChunk& chunk : prompt.chunks) {
    if (!reuse || chunk.stored == nullptr || chunk.end <= exact) continue;
    compute_to(chunk.begin);
    const bool keeps_position = std::holds_alternative<FullReuse>(method);
    const auto context = static_cast<int32_t>(chunk.stored->record().context.size());
    plan.loads.push_back(
        {chunk.stored, chunk.begin, chunk.end, at, keeps_position ? context - chunk.begin : 0});
    const bool candidate = !is_prefix(prompt, chunk);
    for (; at < chunk.end; ++at) {
      if (candidate) plan.candidates.push_back(at);
    }
  }
  compute_to(prompt.end() - 1);
  return plan;
}

Status Fuser::compute(const FusedPrompt& prompt, std::span<const int32_t> positions, Job& job) {
  FusedAttention attention(executor_, *job.loader, prompt, job.kv, job.policy);
  for (size_t first = 0; first < positions.size(); first += block_) {
    attention.begin(positions.subspan(first, std::min<size_t>(block_, positions.size() - first)));
    REPRISE_CHECK(model_.forward({attention.rows(), 0, {}}, attention, nullptr));
    const size_t done = first + attention.rows().size();
    if (job.progress && !job.progress({"prefill", done, positions.size(), "tokens"})) {
      return fail(ErrorCode::kCancelled, "cancelled after computing {} of {} rows", done,
                  positions.size());
    }
  }
  return job.loader->load_through(model_.config().n_layer - 1);
}

// The rows to compute again. Where that needs exact keys or values of all rows, they are computed
// here, and what is returned is already done.
Result<std::vector<int32_t>> Fuser::choose(const FusedPrompt& prompt, const Plan& plan,
                                           const FusionMethod& method, Job& job) {
  const ModelConfig& config = model_.config();
  const uint32_t check_layer = std::min(1u, config.n_layer - 1);
  const int32_t last = prompt.end() - 1;
  std::vector<int32_t> chosen;
  FusedAttention attention(executor_, *job.loader, prompt, job.kv, job.policy);
  FusedAttention::Hooks hooks;
  hooks.layer = check_layer;
  const auto* a3 = std::get_if<A3Options>(&method);
  const bool exact = a3 == nullptr || a3->keys == "exact";
  std::vector<int32_t> positions = merged(plan.computed, {&last, 1});
  if (exact) positions = merged(positions, plan.candidates);
  const auto go_on = [&] {
    if (exact) attention.keep(merged(plan.computed, chosen));
    if (!exact) attention.keep({});
  };
  hooks.after = [&](const float* q, const float*) {
    if (a3 != nullptr) {
      const auto rows = attention.rows();
      const auto asks = std::ranges::lower_bound(rows, prompt.question, {}, &Row::position);
      auto first = static_cast<size_t>(asks - rows.begin());
      first = std::max(first, rows.size() - std::min<size_t>(rows.size(), a3->window));
      const QuestionRows question = {rows.subspan(first),
                                     q + first * config.n_head * config.head_dim};
      const auto scores = question_attention(config, ropes_, check_layer, question, job.kv,
                                             plan.candidates, !job.policy.position_free(), pool_);
      chosen = best_positions(pooled(scores, a3->pool), plan.candidates, a3->ratio);
    }
    go_on();
  };
  if (const auto* blend = std::get_if<CacheBlendOptions>(&method)) {
    hooks.before = [&, blend](const float*, const float* v) {
      const auto all = value_deviation(check_layer, attention.rows(), v, job.kv, pool_);
      std::vector<float> scores;  // of candidates
      for (size_t row = 0; row < all.size(); ++row) {
        const int32_t position = attention.rows()[row].position;
        if (std::ranges::binary_search(plan.candidates, position)) scores.push_back(all[row]);
      }
      chosen = best_positions(scores, plan.candidates, blend->ratio);
    };
  }
  attention.set_hooks(std::move(hooks));
  attention.begin(positions);
  REPRISE_CHECK(model_.forward({attention.rows(), 0, {}}, attention, nullptr));
  if (exact) REPRISE_CHECK(job.loader->load_through(config.n_layer - 1));
  return chosen;
}

Result<const StoredChunk*> Fuser::attempt(const FusedPrompt& prompt, const FusionMethod& method,
                                          Job& job, FusionCost& cost) {
  const Plan plan = this->plan(prompt, method, job.exact);
  ChunkLoader loader(plan.loads, ropes_, job.kv, !job.policy.position_free(), pool_);
  job.loader = &loader;
  const auto* a3 = std::get_if<A3Options>(&method);
  const bool blend = std::holds_alternative<CacheBlendOptions>(method);
  Status status;
  std::vector<int32_t> chosen;
  bool done = false;
  if (!plan.candidates.empty() && (a3 != nullptr || blend)) {
    const auto start = Clock::now();
    auto choice = choose(prompt, plan, method, job);
    if (choice) chosen = std::move(*choice);
    if (!choice) status = tl::unexpected<Error>(choice.error());
    done = blend || a3->keys == "exact";
    if (!done) cost.select_ms += ms_since(start);
  } else if (const auto* lego = std::get_if<LegoLinkOptions>(&method)) {
    for (const ChunkLoad& load : plan.loads) {
      const int32_t end =
          std::min<int32_t>(load.end, load.begin + static_cast<int32_t>(lego->first));
      for (int32_t at = load.from; at < end; ++at) {
        if (std::ranges::binary_search(plan.candidates, at)) chosen.push_back(at);
      }
    }
  }
  if (status && !done) status = compute(prompt, merged(plan.computed, chosen), job);
  loader.add_cost(cost);
  cost.candidate_rows = plan.candidates.size();
  cost.recomputed_rows = chosen.size();
  cost.computed_rows = plan.computed.size();
  if (status) return nullptr;
  if (loader.failed() != nullptr) return loader.failed();
  return tl::unexpected<Error>(status.error());
}

Result<FusionCost> Fuser::fuse(FusedPrompt prompt, const FusionMethod& method, SequenceKv& kv,
                               bool position_free, const ProgressFn& progress) {
  const auto start = Clock::now();
  FusionCost cost;
  ReadsAll policy(position_free);
  Job job = {kv, policy, progress, kv.length()};
  const auto rows = static_cast<size_t>(prompt.end() - job.exact);
  REPRISE_CHECK(kv.reserve(rows));
  while (true) {
    auto failed = attempt(prompt, method, job, cost);
    if (!failed) {
      kv.truncate(job.exact);
      return tl::unexpected<Error>(failed.error());
    }
    if (*failed == nullptr) break;
    ++cost.damaged_chunks;
    for (PromptChunk& chunk : prompt.chunks) {
      if (chunk.stored == *failed) chunk.stored = nullptr;
    }
  }
  kv.commit(rows - 1);
  cost.total_ms = ms_since(start);
  return cost;
}

}  // namespace reprise
