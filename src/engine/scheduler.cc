#include "engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/try.h"
#include "text/utf8.h"

namespace reprise {
namespace {

constexpr size_t kSharedStates = 16;  // of policies, of a few per cent of their prompts' KV each
constexpr int kMostPassedOver = 8;    // passes in a row

}  // namespace

Status Sequence::check_idle() const {
  if (!busy) return {};
  return fail(ErrorCode::kInvalidArgument, "the session is still answering another request");
}

bool Sequence::truncate(size_t length) {
  if (length > tokens.size()) return false;
  if (!policy->can_resume(kv, static_cast<int32_t>(length))) return false;
  if (length == tokens.size()) return true;
  kv.truncate(static_cast<int32_t>(length));
  policy->truncate(static_cast<int32_t>(length));
  tokens.resize(length);
  logits.clear();
  prefilled = std::min(prefilled, length);
  restored = restored && length > 0;
  if (!fused()) exact = kAll;
  return true;
}

void Sequence::clear() {
  kv.truncate(0);
  policy->truncate(0);
  tokens.clear();
  logits.clear();
  prefilled = 0;
  restored = false;
  exact = kAll;
}

Scheduler::Running::Running(Sequence& where, Request what, DoneFn done, const Tokenizer& tokenizer)
    : sequence(&where),
      request(std::move(what)),
      on_done(std::move(done)),
      sampler(request.sampling),
      decoder(tokenizer),
      stop(request.stop),
      submitted(Clock::now()) {
  if (!request.on_progress) return;
  report = [this](const Progress& progress) {
    if (!cancelled && !request.on_progress(progress)) cancelled = true;  // it may call cancel()
    return !cancelled;
  };
}

Scheduler::Scheduler(const ModelConfig& config, const Tokenizer& tokenizer, PagePool& pool,
                     Backend& backend, const SchedulerLimits& limits)
    : config_(config), tokenizer_(tokenizer), pool_(pool), backend_(backend), limits_(limits) {
  pool_.set_reclaim([this](uint64_t pages) {
    for (auto& [key, cache] : prefixes_) {
      if (cache->make_room(pages)) break;
    }
  });
}

Scheduler::~Scheduler() {
  // Callbacks may own sessions, which call cancel() when they go, and what starts requests.
  while (!waiting_.empty() || !running_.empty()) {
    cancel(*(waiting_.empty() ? running_.front() : waiting_.front())->sequence);
  }
  pool_.set_reclaim({});
}

Status Scheduler::check(const Sequence& sequence, std::span<const int32_t> prompt) const {
  if (prompt.empty()) {
    return fail(ErrorCode::kEmptyPrompt, "the prompt is empty; give text with -p or -f");
  }
  REPRISE_CHECK(sequence.check_idle());
  REPRISE_CHECK(check_tokens(prompt));
  if (prompt.size() > limits_.context && !sequence.policy->unbounded()) {
    return fail(
        ErrorCode::kContextExceeded,
        "the prompt has {} tokens, the context holds {}; shorten it, raise --ctx (the model was "
        "trained for {}), or choose --policy reattention or streaming, which read any length",
        prompt.size(), limits_.context, config_.context);
  }
  if (!sequence.policy->evicts()) REPRISE_CHECK(check_room(sequence, prompt.size()));
  return {};
}

Status Scheduler::check_tokens(std::span<const int32_t> tokens) const {
  const auto vocab = static_cast<int32_t>(config_.vocab);
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocab) continue;
    return fail(ErrorCode::kInvalidArgument, "token {} is outside the vocabulary of {}", token,
                vocab);
  }
  return {};
}

Status Scheduler::submit(Sequence& sequence, Request request, DoneFn on_done) {
  REPRISE_CHECK(check(sequence, request.prompt));
  REPRISE_CHECK(check_tokens(request.forced));
  REPRISE_CHECK(validate(request.sampling));
  for (const std::string& stop : request.stop) {
    if (valid_utf8_prefix(stop) != stop.size())
      return fail(ErrorCode::kInvalidArgument, "a stop string is not valid UTF-8");
  }
  sequence.busy = true;
  waiting_.push_back(
      std::make_unique<Running>(sequence, std::move(request), std::move(on_done), tokenizer_));
  return {};
}

bool Scheduler::step() {
  if (stepping_) return false;
  stepping_ = true;
  compute_pass();
  deliver_finished();
  stepping_ = false;
  kept_.clear();
  return !running_.empty() || !waiting_.empty();
}

void Scheduler::compute_pass() {
  admit();
  if (started_.empty()) start(plan());
  if (!started_.empty()) {
    if (auto next = plan_ahead()) start(std::move(*next));
    finish_oldest();
  }
  const auto ended = [](const auto& running) { return running->result.has_value(); };
  if (std::any_of(running_.begin(), running_.end(), ended)) {
    while (!started_.empty()) finish_oldest();  // nothing may be computed of what is given away
  }
}

void Scheduler::start(Pass pass) {
  if (pass.planned.empty()) return;
  const Pass& last = started_.emplace_back(std::move(pass));  // where cancel() finds it
  const Status status = backend_.start({last.rows, last.steps, last.results});
  if (status) return;
  const Pass failed = std::move(started_.back());
  started_.pop_back();
  const Running* before = nullptr;  // steps of a request stand side by side
  for (const Planned& planned : failed.planned) {
    const bool next = planned.running != std::exchange(before, planned.running);
    if (next && planned.running != nullptr) recover(*planned.running, status.error());
  }
}

void Scheduler::finish_oldest() {
  const Pass& pass = started_.front();  // where cancel() finds it
  const Status status = backend_.finish();
  size_t result = 0;
  for (size_t i = 0; i < pass.planned.size(); ++i) {
    const Planned& planned = pass.planned[i];
    const size_t own = result;
    if (planned.has_result) ++result;
    if (planned.running == nullptr) continue;
    if (planned.running->result) {  // it ended while this was computed ahead
      const Sequence& ended = *planned.running->sequence;
      ended.policy->truncate(static_cast<int32_t>(ended.tokens.size()));
      continue;
    }
    if (!status) {
      planned.running->result = tl::unexpected<Error>(status.error());
      continue;
    }
    commit(pass, i);
    advance(planned, planned.has_result ? &pass.results[own] : nullptr, own);
  }
  started_.pop_front();
}

void Scheduler::cancel(const Sequence& sequence) {
  std::vector<std::unique_ptr<Running>> dropped;  // what their callbacks own may end sessions, too
  const auto drop_from = [&](auto& requests) {
    const auto others = [&](const auto& running) { return running->sequence != &sequence; };
    const auto first = std::stable_partition(requests.begin(), requests.end(), others);
    std::move(first, requests.end(), std::back_inserter(dropped));
    requests.erase(first, requests.end());
  };
  for (Pass& pass : started_) {
    for (Planned& planned : pass.planned) {
      if (planned.running != nullptr && planned.running->sequence == &sequence) {
        planned.running = nullptr;
      }
    }
  }
  drop_from(waiting_);
  drop_from(running_);
  drop_from(finished_);
  for (auto& running : dropped) {
    running->cancelled = true;
    keep(std::move(running));
  }
}

void Scheduler::admit() {
  const auto waits = [](const auto& running) { return running->waits; };
  while (!waiting_.empty() && running_.size() < limits_.batch) {
    // Who waits for memory gets it before more of it is held that cannot be paged out.
    if (!can_page(*waiting_.front()->sequence) && std::ranges::any_of(running_, waits)) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    Running& running = *running_.back();
    if (holds_answer(*running.sequence, running.request.prompt))
      begin_answer(running);
    else
      reuse_prefix(running);
  }
}

PrefixCache* Scheduler::prefix_cache(const Policy& policy) {
  const std::string key = policy.prefill_key();
  if (!limits_.prefix_cache || key.empty()) return nullptr;
  auto& cache = prefixes_[key];
  if (!cache) cache = std::make_unique<PrefixCache>(pool_);
  return cache.get();
}

void Scheduler::reuse_prefix(Running& running) {
  Sequence& sequence = *running.sequence;
  const auto& prompt = running.request.prompt;
  sequence.logits.clear();
  const auto common = static_cast<size_t>(
      std::mismatch(sequence.tokens.begin(), sequence.tokens.end(), prompt.begin(), prompt.end())
          .first -
      sequence.tokens.begin());
  const auto end = static_cast<int32_t>(prompt.size());
  // The last prompt token is always computed: its logits are wanted.
  const auto kept = static_cast<int32_t>(std::min(common, prompt.size() - 1));
  auto observed = static_cast<size_t>(sequence.policy->observed_prompt_rows(end, kept));
  // What is shared was made from exact KV.
  const bool shares = observed > 0 && !sequence.fused();
  const SharedState* known = shares ? find_state(sequence, prompt) : nullptr;
  if (known != nullptr) {
    const auto held = static_cast<int32_t>(known->tokens.size());
    observed = static_cast<size_t>(known->policy->observed_prompt_rows(end, held));
  }
  const size_t limit = prompt.size() - std::clamp<size_t>(observed, 1, prompt.size());
  const auto resume_at = [&](size_t length) {  // a cell that was read in one is read in one again
    const bool inside = length < sequence.prefilled;
    return sequence.truncate(inside ? cell_begin(*sequence.policy, length, prompt.size()) : length);
  };
  const bool resumed = resume_at(std::min(common, limit)) || resume_at(static_cast<size_t>(kept));
  if (!resumed) sequence.clear();
  if (known != nullptr) sequence.policy = known->policy->fork();
  sequence.policy->clear_stats();
  use_cached(sequence, prompt, limit);
  wake(running);
  running.answer.counters.prompt_tokens = prompt.size();
  running.answer.counters.reused_tokens = sequence.tokens.size();
  running.prefill_start = Clock::now();
}

const Scheduler::SharedState* Scheduler::find_state(const Sequence& sequence,
                                                    std::span<const int32_t> prompt) const {
  const Policy& policy = *sequence.policy;
  const auto length =
      static_cast<size_t>(policy.shared_length(static_cast<int32_t>(prompt.size())));
  if (length == 0) return nullptr;
  const auto found = std::ranges::find_if(states_, [&](const SharedState& state) {
    return state.policy->spec() == policy.spec() &&
           std::ranges::equal(state.tokens, prompt.first(length));
  });
  return found == states_.end() ? nullptr : &*found;
}

void Scheduler::share_state(const Sequence& sequence, size_t prompt) {
  const auto end = static_cast<int32_t>(prompt);
  const int32_t length = sequence.policy->shared_length(end);
  const auto tokens = std::span(sequence.tokens).first(static_cast<size_t>(length));
  if (length == 0 || tokens.size() > sequence.prefilled) return;
  auto policy = sequence.policy->fork();
  policy->truncate(length);
  if (policy->observed_prompt_rows(end, length) > 0) return;  // it has made nothing
  std::erase_if(states_, [&](const SharedState& state) {
    return state.policy->spec() == policy->spec() && std::ranges::equal(state.tokens, tokens);
  });
  states_.push_front({{tokens.begin(), tokens.end()}, std::move(policy)});
  if (states_.size() > kSharedStates) states_.pop_back();
}

void Scheduler::use_cached(Sequence& sequence, std::span<const int32_t> prompt, size_t limit) {
  PrefixCache* cache = prefix_cache(*sequence.policy);
  if (cache == nullptr) return;
  // A session goes on from what it decoded or kept, whatever others have read since.
  const bool own =
      sequence.prefilled < sequence.tokens.size() || sequence.restored || sequence.policy->evicts();
  if (own && !sequence.tokens.empty()) return;
  SequenceKv found = cache->match(prompt, limit);
  const auto length = static_cast<size_t>(found.length());
  if (length <= sequence.tokens.size()) return;
  sequence.kv = std::move(found);
  sequence.tokens.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(length));
  sequence.prefilled = length;
  sequence.exact = Sequence::kAll;
}

void Scheduler::take_prefix(Sequence& sequence, std::span<const int32_t> prompt) {
  sequence.clear();
  use_cached(sequence, prompt, prompt.size() - 1);
  if (!wake(sequence, false)) sequence.clear();
}

void Scheduler::keep_prefix(const Sequence& sequence) {
  PrefixCache* cache = prefix_cache(*sequence.policy);
  if (cache == nullptr || sequence.prefilled == 0) return;
  cache->insert(std::span(sequence.tokens).first(sequence.prefilled), sequence.kv);
}

Scheduler::Pass Scheduler::plan() {
  paged_out_ = false;
  Pass pass = plan_rows();
  while (std::exchange(paged_out_, false)) pass = plan_rows();  // other rows fit now
  pool_.promise(pass.paged);
  return pass;
}

const Scheduler::Running* Scheduler::find_starved() const {
  const auto found = std::ranges::find_if(running_, [](const auto& running) {
    return !running->result && running->passed_over >= kMostPassedOver;
  });
  return found == running_.end() ? nullptr : found->get();
}

Scheduler::Pass Scheduler::plan_rows() {
  std::vector<Turn> turns = take_turns();
  // What the others take is known when it is asked what those that are paged out have room for.
  std::stable_partition(turns.begin(), turns.end(),
                        [](const Turn& turn) { return !turn.running->sequence->kv.paged(); });
  Pass pass;
  for (Turn& turn : turns) reserve_turn(turn, pass);
  std::stable_partition(turns.begin(), turns.end(), [](const Turn& turn) {
    return turn.phase == kernels::Phase::kDecode;  // as backends want them
  });
  for (const Turn& turn : turns) {
    if (turn.rows > 0) plan_request(turn, pass);
  }
  return pass;
}

std::vector<Scheduler::Turn> Scheduler::take_turns() {
  std::vector<Turn> turns;
  std::vector<Running*> reading;
  const Running* const starved = find_starved();  // it gets a pass of its own
  for (const auto& running : running_) {
    if (running->result) continue;  // it could not start
    if (starved != nullptr && running.get() != starved) continue;
    if (running->prompt_left() > 0)
      reading.push_back(running.get());
    else
      turns.push_back({running.get(), kernels::Phase::kDecode, {1}});
  }
  if (reading.empty()) return turns;
  const size_t first = first_share_++ % reading.size();
  size_t budget = limits_.chunk;
  for (size_t i = 0; i < reading.size() && budget > 0; ++i) {
    Running& running = *reading[(first + i) % reading.size()];
    const size_t sharers = reading.size() - i;
    std::vector<size_t> cells = next_cells(running, (budget + sharers - 1) / sharers);
    if (i > 0 && cells.front() > budget) continue;  // a cell is not cut: it waits for its turn
    budget -= std::min(budget, std::accumulate(cells.begin(), cells.end(), size_t{0}));
    turns.push_back({&running, kernels::Phase::kPrefill, std::move(cells)});
  }
  return turns;
}

size_t Scheduler::cell_at(const Policy& policy, size_t position, size_t prompt_end, size_t most) {
  const auto at = static_cast<int32_t>(position), end = static_cast<int32_t>(prompt_end);
  const size_t left = std::min(prompt_end, static_cast<size_t>(policy.next_cut(at))) - position;
  if (policy.prefill_grid() == 0) return std::min(most, left);
  return std::min(left, static_cast<size_t>(policy.prefill_cell(at, end)));
}

size_t Scheduler::cell_begin(const Policy& policy, size_t position, size_t prompt_end) {
  const auto grid = static_cast<size_t>(policy.prefill_grid());
  if (grid == 0) return position;
  size_t begin = position / grid * grid;
  for (size_t next = begin; next <= position; next += cell_at(policy, next, prompt_end, 0)) {
    begin = next;
  }
  return begin;
}

std::vector<size_t> Scheduler::next_cells(const Running& running, size_t share) const {
  const Policy& policy = *running.sequence->policy;
  const size_t first = running.sequence->tokens.size(), end = running.request.prompt.size();
  std::vector<size_t> cells = {cell_at(policy, first, end, share)};
  if (!backend_.joins_cells() || !policy.joins_cells()) return cells;
  size_t position = first + cells.back();
  while (position < end) {
    const size_t cell = cell_at(policy, position, end, share);
    if (position + cell - first > share) break;
    cells.push_back(cell);
    position += cell;
  }
  return cells;
}

void Scheduler::reserve_turn(Turn& turn, Pass& pass) {
  Running& running = *turn.running;
  Sequence& sequence = *running.sequence;
  const size_t position = sequence.tokens.size();
  size_t rows = std::accumulate(turn.cells.begin(), turn.cells.end(), size_t{0});
  if (sequence.kv.paged()) {
    rows = rows_in_memory(sequence, turn.cells);
    const uint64_t layer = PageMap::blocks_of(position + rows);
    if (!has_room(running, layer, pass)) return;
    pass.paged += layer;
  }
  if (auto status = reserve(sequence, rows); !status) {
    running.result = tl::unexpected<Error>(status.error());
    return;
  }
  turn.rows = rows;
}

void Scheduler::plan_request(const Turn& turn, Pass& pass) {
  Running& running = *turn.running;
  const kernels::Phase phase = turn.phase;
  Sequence& sequence = *running.sequence;
  const size_t position = sequence.tokens.size(), rows = turn.rows;
  size_t done = 0;
  for (const size_t cell : turn.cells) {
    const size_t count = std::min(cell, rows - done);  // memory may have room for fewer
    if (count == 0) break;
    add_step(running, position + done, count, phase, pass);
    done += count;
  }
  if (phase == kernels::Phase::kPrefill && rows < running.prompt_left()) return;
  pass.planned.back().has_result = true;
  const Request& request = running.request;
  const bool forced = running.answer.tokens.size() < request.forced.size();
  const bool chosen = backend_.samples() && !request.on_logits && !forced;
  pass.results.push_back({static_cast<uint32_t>(pass.rows.size() - 1),
                          chosen ? &request.sampling : nullptr, sequence.tokens});
}

void Scheduler::add_step(Running& running, size_t position, size_t rows, kernels::Phase phase,
                         Pass& pass) {
  Sequence& sequence = *running.sequence;
  const auto& prompt = running.request.prompt;
  const auto step = static_cast<uint32_t>(pass.steps.size());
  const auto first = static_cast<uint32_t>(pass.rows.size()), count = static_cast<uint32_t>(rows);
  for (size_t at = position; at < position + rows; ++at) {
    const int32_t token = phase == kernels::Phase::kDecode ? running.next_token : prompt[at];
    pass.rows.push_back({step, static_cast<int32_t>(at), token});
  }
  const bool reports = phase == kernels::Phase::kPrefill && running.report;
  pass.steps.push_back({&sequence.kv, sequence.policy.get(), first, count, phase,
                        static_cast<int32_t>(prompt.size()), reports ? &running.report : nullptr});
  pass.planned.push_back({&running, first, count, false});
}

bool Scheduler::may_run_ahead(const Running& running) const {
  const size_t made = running.answer.tokens.size() + 1;  // with the token being chosen
  const size_t length = running.sequence->tokens.size() + 1;
  return made < running.request.max_tokens &&
         (length < limits_.context || running.sequence->policy->unbounded());
}

std::optional<Scheduler::Pass> Scheduler::plan_ahead() {
  const Pass& last = started_.back();
  if (!backend_.samples() || started_.size() > 1 || !waiting_.empty() ||
      last.planned.size() != running_.size() || last.results.size() != running_.size()) {
    return std::nullopt;
  }
  for (size_t i = 0; i < last.planned.size(); ++i) {
    const Planned& planned = last.planned[i];
    const bool decode = last.steps[i].phase == kernels::Phase::kDecode;
    const bool known = last.results[i].sampling == nullptr || planned.running == nullptr;
    if (!decode || known || !may_run_ahead(*planned.running)) return std::nullopt;
  }
  Pass next = last;
  for (const Planned& planned : last.planned) {
    // The room of the row being computed, and one more.
    if (!planned.running->sequence->kv.reserve(2)) return std::nullopt;
  }
  for (Row& row : next.rows) row = {row.sequence, row.position + 1, kChosenToken};
  return next;
}

void Scheduler::commit(const Pass& pass, size_t step) {
  const Planned& planned = pass.planned[step];
  Sequence& sequence = *planned.running->sequence;
  const bool prefill = pass.steps[step].phase == kernels::Phase::kPrefill;
  if (prefill && sequence.prefilled == sequence.tokens.size()) sequence.prefilled += planned.rows;
  for (uint32_t i = 0; i < planned.rows; ++i) {
    const int32_t token = pass.rows[planned.first_row + i].token;
    sequence.tokens.push_back(token == kChosenToken ? planned.running->next_token : token);
  }
  sequence.kv.commit(planned.rows);
  sequence.policy->after_step(sequence.kv);
  const StepCost cost = backend_.cost(step);
  if (!prefill) sequence.policy->step_took(pass.rows[planned.first_row].position, cost.step_ms);
  Counters& counters = planned.running->answer.counters;
  counters.keys_visible += cost.keys_visible;
  counters.keys_read += cost.keys_read;
  counters.kv_bytes_read += cost.kv_bytes_read;
  counters.full_kv_bytes += cost.full_kv_bytes;
  counters.index_bytes_read += cost.index_bytes_read;
  counters.select_ms += cost.select_ms;
}

void Scheduler::advance(const Planned& planned, const RowResult* what, size_t result) {
  Running& running = *planned.running;
  const bool prefill = running.answer.tokens.empty();
  if (prefill && !report_prefill(running)) return;
  if (what == nullptr) return;
  if (prefill) finish_prefill(running);
  if (running.request.max_tokens == 0) return finish(running, FinishReason::kLength);
  if (what->sampling != nullptr) return accept_token(running, backend_.token(result));
  choose_token(running, backend_.logits(result));
}

void Scheduler::deliver_finished() {
  const auto first = std::stable_partition(running_.begin(), running_.end(),
                                           [](const auto& running) { return !running->result; });
  std::move(first, running_.end(), std::back_inserter(finished_));
  running_.erase(first, running_.end());
  for (const auto& running : finished_) running->sequence->kv.rest();
  if (!finished_.empty() && pool_.reads_host()) {
    for (const auto& running : running_) wake(*running);  // there may be room in faster memory now
  }
  while (!finished_.empty()) {  // each may cancel others
    const std::unique_ptr<Running> running = std::move(finished_.front());
    finished_.pop_front();
    Sequence& sequence = *running->sequence;
    // An index that was taken from another prompt holds keys that this one did not get to.
    if (!*running->result) sequence.policy->truncate(static_cast<int32_t>(sequence.tokens.size()));
    sequence.busy = false;
    if (running->on_done) running->on_done(std::move(*running->result));
  }
}

}  // namespace reprise
