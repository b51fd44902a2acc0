#include "methods/decorators/auto.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

#include "base/state_bytes.h"
#include "base/try.h"
#include "methods/registry.h"

namespace reprise {
namespace {

// What saves less is not worth reading fewer keys.
constexpr double kPays = 0.9;
constexpr std::string_view kSmall = "small", kSmallIndexes = "quest/sparq/mac";

Status add_candidate(std::string name, std::unique_ptr<Policy> policy,
                     std::vector<AutoPolicy::Candidate>& candidates) {
  if (policy->evicts() || policy->prefill_key() != kDensePrefill) {
    return fail(ErrorCode::kUnsupported,
                "policy auto: {} cannot take turns with full attention, it gives keys up or reads "
                "prompts in a way of its own; name policies that select keys, such as quest",
                name);
  }
  auto fresh = policy->fork();
  candidates.push_back({std::move(name), std::move(policy), std::move(fresh)});
  return {};
}

Status add_named(std::string_view name, const ModelConfig& config,
                 std::vector<AutoPolicy::Candidate>& candidates) {
  REPRISE_TRY(auto policy, create_policy(policy_entries(), name, config));
  return add_candidate(std::string(name), std::move(policy), candidates);
}

}  // namespace

Result<std::unique_ptr<Policy>> AutoPolicy::create(const AutoOptions& options,
                                                   const ModelConfig& config,
                                                   std::unique_ptr<Policy> inner) {
  std::vector<Candidate> candidates;
  const bool named = inner != nullptr || options.among != kSmall;
  REPRISE_CHECK(add_named("full", config, candidates));
  if (inner != nullptr) {
    std::string name = inner->spec();
    REPRISE_CHECK(add_candidate(std::move(name), std::move(inner), candidates));
  } else {
    for (std::string_view rest = named ? options.among : kSmallIndexes;;) {
      const size_t slash = rest.find('/');
      REPRISE_CHECK(add_named(rest.substr(0, slash), config, candidates));
      if (slash == std::string_view::npos) break;
      rest = rest.substr(slash + 1);
    }
  }
  return std::make_unique<AutoPolicy>(static_cast<int32_t>(options.from), named,
                                      std::move(candidates));
}

AutoPolicy::AutoPolicy(int32_t from, bool named, std::vector<Candidate> candidates)
    : from_(from),
      named_(named),
      candidates_(std::move(candidates)),
      trial_ms_(candidates_.size() * kTrials),
      steps_(candidates_.size()) {}

AutoPolicy::AutoPolicy(const AutoPolicy& other)
    : Policy(other),
      from_(other.from_),
      named_(other.named_),
      position_(other.position_),
      measured_at_(other.measured_at_),
      trial_(other.trial_),
      chosen_(other.chosen_),
      now_(other.now_),
      trial_ms_(other.trial_ms_),
      steps_(other.steps_) {
  for (const Candidate& each : other.candidates_) {
    candidates_.push_back({each.name, each.policy->fork(), each.fresh->fork()});
  }
  if (!other.under_way_.empty()) start_over();
}

void AutoPolicy::select(const QueryRows& rows, Selection& selection) {
  if (rows.phase == kernels::Phase::kPrefill) {
    for (const Candidate& each : candidates_) {
      selection.reset();
      each.policy->select(rows, selection);
    }
    return;
  }
  if (rows.first() != position_) begin_step(rows.first());
  candidates_[now_].policy->select(rows, selection);
}

void AutoPolicy::begin_step(int32_t position) {
  position_ = position;
  if (from_ > 0) {
    now_ = position >= from_ ? 1 : 0;
  } else if (trial_ < trial_ms_.size()) {
    now_ = trial_++ / kTrials;
    measured_at_ = position;
  } else {
    if (trial_ == trial_ms_.size() && under_way_.empty()) choose();
    if (trial_ > trial_ms_.size()) now_ = chosen_;   // until then as in the last trial
    if (position >= 2 * measured_at_) start_over();  // the next steps measure again
  }
  ++steps_[now_];
}

void AutoPolicy::choose() {
  ++trial_;
  chosen_ = 0;
  double best = trial_ms_[kTrials - 1] * kPays;
  for (size_t i = 1; i < candidates_.size(); ++i) {
    const double own = trial_ms_[i * kTrials + kTrials - 1];
    if (own >= best) continue;
    best = own;
    chosen_ = i;
  }
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (i != chosen_) candidates_[i].policy = candidates_[i].fresh->fork();
  }
}

void AutoPolicy::start_over() {
  trial_ = 0;
  under_way_.clear();
  std::fill(trial_ms_.begin(), trial_ms_.end(), 0.0);
}

void AutoPolicy::observe(const QueryRows& rows, const AttentionResult& result) {
  const bool decodes = rows.phase == kernels::Phase::kDecode;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    Policy& policy = *candidates_[i].policy;
    const bool acts = i == now_ || !decodes;
    if (acts && policy.observes(rows.layer, rows.phase)) policy.observe(rows, result);
  }
  if (decodes && measures()) trial_ms_[trial_ - 1] += result.select_ms + result.attend_ms;
}

std::vector<const Policy*> AutoPolicy::acting() const {
  std::vector<const Policy*> policies;
  for (const Candidate& each : candidates_) policies.push_back(each.policy.get());
  return policies;
}

void AutoPolicy::restrict_to(const std::function<bool(const Policy&)>& runs) {
  if (named_) return;
  std::erase_if(candidates_, [&](const Candidate& each) { return !runs(*each.policy); });
  trial_ms_.assign(candidates_.size() * kTrials, 0.0);
  steps_.assign(candidates_.size(), 0);
}

DeviceStep AutoPolicy::begin_device_step(int32_t position) {
  // A trial that was computed ahead and given up has no time.
  if (!under_way_.empty() && under_way_.back().position >= position) start_over();
  const size_t before = trial_;
  begin_step(position);
  const bool timed = measures() && trial_ != before;
  if (timed) under_way_.push_back({position, trial_ - 1});
  return {candidates_[now_].policy.get(), timed};
}

void AutoPolicy::step_took(int32_t position, double ms) {
  if (under_way_.empty() || under_way_.front().position != position) return;
  trial_ms_[under_way_.front().trial] = ms;
  under_way_.pop_front();
  if (ms == 0.0) start_over();  // it was not alone on the device
}

void AutoPolicy::truncate(int32_t length) {
  for (const Candidate& each : candidates_) each.policy->truncate(length);
  position_ = -1;  // the next answer may begin where this one ended
  if (length < measured_at_) start_over();
}

bool AutoPolicy::rebuilds() const {
  return std::all_of(candidates_.begin(), candidates_.end(),
                     [](const Candidate& each) { return each.policy->rebuilds(); });
}

std::string AutoPolicy::save_state() const {
  StateWriter out;
  const auto text = [&](std::string_view part) {
    out.value(uint64_t{part.size()});
    out.array(part.data(), part.size());
  };
  out.value(uint64_t{candidates_.size()});
  for (const Candidate& each : candidates_) {
    text(each.name);
    text(each.policy->save_state());
  }
  return out.take();
}

Status AutoPolicy::restore_state(std::string_view state, int32_t length) {
  truncate(0);
  if (state.empty()) return {};
  StateReader in(state);
  const auto text = [&] {
    std::vector<char> part;
    in.array(part, in.value<uint64_t>());
    return std::string(part.begin(), part.end());
  };
  std::map<std::string, std::string> kept;
  for (uint64_t rest = in.value<uint64_t>(); rest > 0 && in.ok(); --rest) {
    const std::string name = text();
    kept[name] = text();
  }
  if (!in.ended()) return fail(ErrorCode::kCorrupt, "what was saved is no state of auto");
  for (const Candidate& each : candidates_) {
    const auto own = kept.find(each.name);
    if (own == kept.end()) continue;  // where it was written there was none
    const Status taken = each.policy->restore_state(own->second, length);
    if (taken) continue;
    truncate(0);
    return taken;
  }
  return {};
}

int32_t AutoPolicy::observed_prompt_rows(int32_t prompt_end, int32_t kept) const {
  int32_t rows = 0;
  for (const Candidate& each : candidates_) {
    rows = std::max(rows, each.policy->observed_prompt_rows(prompt_end, kept));
  }
  return rows;
}

PolicyStats AutoPolicy::stats() const {
  PolicyStats stats = candidates_[chosen_].policy->stats();
  const uint64_t steps = std::accumulate(steps_.begin(), steps_.end(), uint64_t{0});
  for (size_t i = 0; i < candidates_.size() && steps > 0; ++i) {
    stats.emplace_back("auto_" + candidates_[i].name,
                       static_cast<double>(steps_[i]) / static_cast<double>(steps));
  }
  return stats;
}

void AutoPolicy::clear_stats() {
  std::fill(steps_.begin(), steps_.end(), 0);
  for (const Candidate& each : candidates_) each.policy->clear_stats();
}

uint64_t AutoPolicy::state_bytes() const {
  uint64_t bytes = 0;
  for (const Candidate& each : candidates_) bytes += each.policy->state_bytes();
  return bytes;
}

void AutoPolicy::leave_alone(uint32_t layer) {
  for (const Candidate& each : candidates_) {
    each.policy->leave_alone(layer);
    each.fresh->leave_alone(layer);
  }
}

}  // namespace reprise
