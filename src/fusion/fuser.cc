#include "fusion/fuser.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>

#include "base/try.h"
#include "fusion/row_choice.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::vector<int32_t> merged(std::span<const int32_t> a, std::span<const int32_t> b) {
  std::vector<int32_t> out;
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

// A chunk right behind the tokens that it was read after has the KV that it would have here, unless
// the form that it is kept in rounds it.
bool is_prefix(const FusedPrompt& prompt, const PromptChunk& chunk) {
  const ChunkRecord& record = chunk.stored->record();
  const auto before = prompt.tokens.first(static_cast<size_t>(chunk.begin));
  return !record.codec.lossy() && std::ranges::equal(before, record.context);
}

// Positions before the question that are not candidates, whose KV is exact, and those that are
// read.
std::vector<int32_t> keys_to_read(int32_t question, std::span<const int32_t> candidates,
                                  std::span<const int32_t> read) {
  std::vector<int32_t> exact;
  size_t i = 0;
  for (int32_t at = 0; at < question; ++at) {
    const bool candidate = i < candidates.size() && candidates[i] == at;
    if (!candidate) exact.push_back(at);
    i += candidate ? 1 : 0;
  }
  return merged(exact, read);
}

// As part of a prompt that ends there.
double mean_position(std::span<const int32_t> positions, int32_t end) {
  if (positions.empty()) return 0;
  const double sum = std::accumulate(positions.begin(), positions.end(), 0.0);
  return sum / static_cast<double>(positions.size()) / end;
}

}  // namespace

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
  compute_to(prompt.end());
  return plan;
}

// Chooses the rows to compute again. Where that needs exact keys or values of all rows, what is
// chosen is computed, too.
Status Fuser::choose(const FusedPrompt& prompt, const Plan& plan, const Selector& selector,
                     FusedPass& pass, FewReads& chosen) {
  std::vector<int32_t> positions = plan.computed;
  if (selector.exact) positions = merged(positions, plan.candidates);
  const auto choose = [&](std::span<const float> scores) -> std::vector<int32_t> {
    std::vector<float> ranked = pooled(scores, selector.pool);
    put_first(first_of_chunks(plan, selector.first), plan.candidates, ranked);
    chosen.rows = best_positions(ranked, plan.candidates, selector.ratio);
    if (selector.reads_few()) {
      const float part = std::max(selector.reads, selector.ratio);
      const auto read = best_positions(ranked, plan.candidates, part);
      chosen.keys = keys_to_read(prompt.question, plan.candidates, read);
      chosen.near = selector.near;
    }
    if (!selector.exact) return {};
    return merged(plan.computed, chosen.rows);
  };
  const RowCheck check = {plan.candidates, selector.score, selector.layer, prompt.question,
                          selector.window};
  return pass.check(positions, check, choose);
}

std::optional<Fuser::Selector> Fuser::selector(const FusionMethod& method) {
  if (const auto* a3 = std::get_if<A3Options>(&method)) {
    const RowScore score = a3->scores == "joint" ? RowScore::kJoint : RowScore::kHeads;
    return Selector{a3->keys == "exact", score,     a3->ratio, a3->layer, a3->first, a3->pool,
                    a3->window,          a3->reads, a3->near};
  }
  if (const auto* blend = std::get_if<CacheBlendOptions>(&method)) {
    return Selector{true, RowScore::kValues, blend->ratio};
  }
  return std::nullopt;
}

std::vector<int32_t> Fuser::first_of_chunks(const Plan& plan, uint32_t count) {
  std::vector<int32_t> chosen;
  for (const ChunkLoad& load : plan.loads) {
    const int32_t end = std::min<int32_t>(load.end, load.begin + static_cast<int32_t>(count));
    for (int32_t at = load.from; at < end; ++at) {
      if (std::ranges::binary_search(plan.candidates, at)) chosen.push_back(at);
    }
  }
  return chosen;
}

Result<std::vector<const StoredChunk*>> Fuser::attempt(const FusedJob& job,
                                                       const FusionMethod& method, int32_t exact,
                                                       Fused& fused) {
  const auto began = Clock::now();
  FusionCost& cost = fused.cost;
  const double waited = cost.wait_ms;
  const Plan plan = this->plan(job.prompt, method, exact);
  REPRISE_TRY(const auto pass, device_.begin(job, plan.loads));
  // While the first blocks are on their way.
  REPRISE_CHECK(reserve_in_memory(job.kv, static_cast<size_t>(job.prompt.end() - exact)));
  const auto selects = selector(method);
  Status status;
  FewReads chosen;
  bool done = false;
  if (!plan.candidates.empty() && selects) {
    const auto start = Clock::now();
    status = choose(job.prompt, plan, *selects, *pass, chosen);
    done = selects->exact && !(plan.computed.empty() && chosen.rows.empty());
    if (!selects->exact) cost.select_ms += ms_since(start);
  } else if (const auto* lego = std::get_if<LegoLinkOptions>(&method)) {
    chosen.rows = first_of_chunks(plan, lego->first);
  }
  const bool few = selects && selects->reads_few() && !job.position_free && !chosen.rows.empty();
  if (status && !done) {
    status = pass->compute(merged(plan.computed, chosen.rows), few ? &chosen : nullptr);
  }
  pass->add_cost(cost);
  cost.loaded_chunks = plan.loads.size();
  cost.loaded_rows = cost.rounded_chunks = 0;
  for (const ChunkLoad& load : plan.loads) {
    cost.loaded_rows += static_cast<uint64_t>(load.end - load.from);
    cost.rounded_chunks += load.chunk->record().codec.lossy() ? 1 : 0;
  }
  cost.candidate_rows = plan.candidates.size();
  cost.recomputed_rows = chosen.rows.size();
  cost.few_rows = few ? chosen.rows.size() : 0;
  cost.mean_position = mean_position(chosen.rows, job.prompt.end());
  cost.computed_rows = plan.computed.size();
  cost.compute_ms = ms_since(began) - (cost.wait_ms - waited);
  if (status) {
    fused.logits.assign(pass->logits().begin(), pass->logits().end());
    return std::vector<const StoredChunk*>();
  }
  if (const SlowLoad* slow = pass->slow(); slow != nullptr) {
    cost.slow_chunks += slow->chunks.size();
    cost.reading_ms = slow->reading_ms;
    cost.computing_ms = slow->computing_ms;
    return slow->chunks;
  }
  if (pass->failed() == nullptr) return tl::unexpected<Error>(status.error());
  ++cost.damaged_chunks;
  const bool readable = status.error().code != ErrorCode::kFileUnreadable;
  if (readable) fused.damaged.push_back(pass->failed());
  return std::vector<const StoredChunk*>{pass->failed()};
}

Result<Fused> Fuser::fuse(FusedPrompt prompt, const FusionMethod& method, SequenceKv& kv,
                          bool position_free, const ProgressFn& progress) {
  const auto start = Clock::now();
  Fused fused;
  const FusedJob job = {prompt, kv, position_free, progress};
  const int32_t exact = kv.length();
  while (true) {
    auto left = attempt(job, method, exact, fused);
    if (!left) {
      kv.truncate(exact);
      return tl::unexpected<Error>(left.error());
    }
    if (left->empty()) break;
    for (PromptChunk& chunk : prompt.chunks) {
      if (std::ranges::count(*left, chunk.stored) > 0) chunk.stored = nullptr;
    }
  }
  kv.commit(static_cast<size_t>(prompt.end() - exact));
  fused.cost.total_ms = ms_since(start);
  return fused;
}

}  // namespace reprise
