#include "engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/percentile.h"
#include "base/system.h"
#include "base/try.h"

namespace reprise {
namespace {

double ms_between(std::chrono::steady_clock::time_point from,
                  std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

std::vector<const RopeTable*> layer_ropes(const Model& model) {
  std::vector<const RopeTable*> ropes;
  for (uint32_t layer = 0; layer < model.config().n_layer; ++layer) {
    ropes.push_back(&model.rope(layer));
  }
  return ropes;
}

}  // namespace

bool Sequence::truncate(size_t length) {
  if (length >= tokens.size()) return length == tokens.size();
  if (!policy->can_resume(kv, static_cast<int32_t>(length))) return false;
  kv.truncate(static_cast<int32_t>(length));
  policy->truncate(static_cast<int32_t>(length));
  tokens.resize(length);
  prefilled = std::min(prefilled, length);
  return true;
}

void Sequence::clear() {
  kv.truncate(0);
  policy->truncate(0);
  tokens.clear();
  prefilled = 0;
}

Scheduler::Running::Running(Sequence& where, Request what, DoneFn done, const Tokenizer& tokenizer)
    : sequence(&where),
      request(std::move(what)),
      on_done(std::move(done)),
      sampler(request.sampling),
      decoder(tokenizer),
      stop(request.stop),
      submitted(Clock::now()) {}

Scheduler::Scheduler(Model& model, const Tokenizer& tokenizer, PagePool& pool, ThreadPool& threads,
                     const SchedulerLimits& limits)
    : model_(model),
      tokenizer_(tokenizer),
      pool_(pool),
      limits_(limits),
      executor_(model.config(), layer_ropes(model), threads) {
  pool_.set_reclaim([this](uint64_t pages) {
    for (auto& [key, cache] : prefixes_) {
      if (cache->make_room(pages)) break;
    }
  });
}

Status Scheduler::submit(Sequence& sequence, Request request, DoneFn on_done) {
  const size_t length = request.prompt.size();
  if (length == 0) {
    return fail(ErrorCode::kEmptyPrompt, "the prompt is empty; give text with -p or -f");
  }
  if (sequence.busy) {
    return fail(ErrorCode::kInvalidArgument, "the session is still answering another request");
  }
  const auto vocab = static_cast<int32_t>(model_.config().vocab);
  for (const auto* tokens : {&request.prompt, &request.forced}) {
    for (const int32_t token : *tokens) {
      if (token >= 0 && token < vocab) continue;
      return fail(ErrorCode::kInvalidArgument, "token {} is outside the vocabulary of {}", token,
                  vocab);
    }
  }
  REPRISE_CHECK(validate(request.sampling));
  if (length > limits_.context && !sequence.policy->unbounded()) {
    return fail(
        ErrorCode::kContextExceeded,
        "the prompt has {} tokens, the context holds {}; shorten it, raise --ctx (the model "
        "was trained for {}), or bound what is kept with --policy streaming",
        length, limits_.context, model_.config().context);
  }
  sequence.busy = true;
  waiting_.push_back(
      std::make_unique<Running>(sequence, std::move(request), std::move(on_done), tokenizer_));
  return {};
}

bool Scheduler::step() {
  admit();
  plan_rows();
  if (!planned_.empty()) {
    logits_.resize(std::max(logits_.size(), logit_rows_.size() * model_.config().vocab));
    executor_.begin(rows_, steps_);
    const auto decode_rows = static_cast<size_t>(std::count_if(
        steps_.begin(), steps_.end(),
        [](const SequenceStep& step) { return step.phase == kernels::Phase::kDecode; }));
    const Status status =
        model_.forward({rows_, decode_rows, logit_rows_}, executor_, logits_.data());
    size_t logit_row = 0;
    for (size_t i = 0; i < planned_.size(); ++i) {
      if (!status) {
        planned_[i].running->result = tl::unexpected<Error>(status.error());
        continue;
      }
      commit(planned_[i], i);
      std::span<float> logits;
      if (planned_[i].wants_logits) {
        const size_t vocab = model_.config().vocab;
        logits = std::span(logits_).subspan(logit_row++ * vocab, vocab);
      }
      advance(planned_[i], logits);
    }
  }
  deliver_finished();
  return !running_.empty() || !waiting_.empty();
}

void Scheduler::cancel(const Sequence& sequence) {
  const auto runs_on = [&](const auto& running) { return running->sequence == &sequence; };
  std::erase_if(waiting_, runs_on);
  std::erase_if(running_, runs_on);
}

void Scheduler::admit() {
  while (!waiting_.empty() && running_.size() < limits_.batch) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    reuse_prefix(*running_.back());
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
  // The last prompt token is always computed: its logits are wanted.
  const auto observed = static_cast<size_t>(sequence.policy->observed_prompt_rows());
  const size_t limit = prompt.size() - std::clamp<size_t>(observed, 1, prompt.size());
  const auto common = static_cast<size_t>(
      std::mismatch(sequence.tokens.begin(), sequence.tokens.end(), prompt.begin(), prompt.end())
          .first -
      sequence.tokens.begin());
  const bool resumed = sequence.truncate(std::min(common, limit)) ||
                       sequence.truncate(std::min(common, prompt.size() - 1));
  if (!resumed) sequence.clear();
  sequence.policy->clear_stats();
  if (PrefixCache* cache = prefix_cache(*sequence.policy)) {
    SequenceKv found = cache->match(prompt, limit);
    const auto length = static_cast<size_t>(found.length());
    if (length > sequence.tokens.size()) {
      sequence.kv = std::move(found);
      sequence.tokens.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(length));
      sequence.prefilled = length;
    }
  }
  running.answer.counters.prompt_tokens = prompt.size();
  running.answer.counters.reused_tokens = sequence.tokens.size();
  running.prefill_start = Clock::now();
}

void Scheduler::plan_rows() {
  rows_.clear();
  steps_.clear();
  planned_.clear();
  logit_rows_.clear();
  std::vector<Running*> reading;
  for (const auto& running : running_) {
    if (running->prompt_left() > 0)
      reading.push_back(running.get());
    else
      plan_request(*running, 1, kernels::Phase::kDecode);
  }
  if (reading.empty()) return;
  const size_t first = first_share_++ % reading.size();
  size_t budget = limits_.chunk;
  for (size_t i = 0; i < reading.size() && budget > 0; ++i) {
    Running& running = *reading[(first + i) % reading.size()];
    const size_t sharers = reading.size() - i;
    const size_t rows = std::min((budget + sharers - 1) / sharers, running.prompt_left());
    budget -= rows;
    plan_request(running, rows, kernels::Phase::kPrefill);
  }
}

void Scheduler::plan_request(Running& running, size_t rows, kernels::Phase phase) {
  Sequence& sequence = *running.sequence;
  const size_t position = sequence.tokens.size();
  const auto cut = static_cast<size_t>(sequence.policy->next_cut(static_cast<int32_t>(position)));
  rows = std::min(rows, cut - position);
  if (auto status = reserve(sequence.kv, rows); !status) {
    running.result = tl::unexpected<Error>(status.error());
    return;
  }
  const auto first = static_cast<uint32_t>(rows_.size());
  for (size_t i = 0; i < rows; ++i) {
    const int32_t token = phase == kernels::Phase::kDecode ? running.next_token
                                                           : running.request.prompt[position + i];
    rows_.push_back(
        {static_cast<uint32_t>(steps_.size()), static_cast<int32_t>(position + i), token});
  }
  const bool wants_logits = phase == kernels::Phase::kDecode || rows == running.prompt_left();
  if (wants_logits) logit_rows_.push_back(static_cast<uint32_t>(rows_.size() - 1));
  const auto count = static_cast<uint32_t>(rows);
  const auto prompt_end = static_cast<int32_t>(running.request.prompt.size());
  steps_.push_back({&sequence.kv, sequence.policy.get(), first, count, phase, prompt_end});
  planned_.push_back({&running, first, count, wants_logits});
}

Status Scheduler::reserve(SequenceKv& kv, size_t rows) const {
  Status status = kv.reserve(rows);
  if (status || status.error().code != ErrorCode::kOutOfMemory) return status;
  return fail(ErrorCode::kOutOfMemory,
              "no KV memory for {} more tokens ({} MiB of {} MiB in use); raise --kv-memory, use "
              "--kv-type q8_0, or bound what is kept with --policy streaming",
              rows, pool_.used_bytes() >> 20, pool_.limit_bytes() >> 20);
}

void Scheduler::commit(const Planned& planned, size_t step) {
  Sequence& sequence = *planned.running->sequence;
  const bool prefill = steps_[step].phase == kernels::Phase::kPrefill;
  if (prefill && sequence.prefilled == sequence.tokens.size()) sequence.prefilled += planned.rows;
  for (uint32_t i = 0; i < planned.rows; ++i) {
    sequence.tokens.push_back(rows_[planned.first_row + i].token);
  }
  sequence.kv.commit(planned.rows);
  sequence.policy->after_step(sequence.kv);
  const StepCost& cost = executor_.cost(step);
  Counters& counters = planned.running->answer.counters;
  counters.keys_visible += cost.keys_visible;
  counters.keys_read += cost.keys_read;
  counters.kv_bytes_read += cost.kv_bytes_read;
  counters.full_kv_bytes += cost.full_kv_bytes;
  counters.index_bytes_read += cost.index_bytes_read;
  counters.select_ms += cost.select_ms;
}

void Scheduler::advance(const Planned& planned, std::span<float> logits) {
  Running& running = *planned.running;
  Sequence& sequence = *running.sequence;
  const bool prefill = running.answer.tokens.empty();
  if (prefill && running.request.on_progress) {
    const Progress progress = {"prefill", sequence.tokens.size(), running.request.prompt.size(),
                               "tokens"};
    if (!running.request.on_progress(progress)) {
      running.result = fail(ErrorCode::kCancelled, "cancelled after reading {} of {} prompt tokens",
                            sequence.tokens.size(), running.request.prompt.size());
      return;
    }
  }
  if (!planned.wants_logits) return;
  if (prefill) finish_prefill(running);
  if (running.request.max_tokens == 0) return finish(running, FinishReason::kLength);
  if (running.request.on_logits) running.request.on_logits(logits);
  const size_t made = running.answer.tokens.size();
  const auto& forced = running.request.forced;
  accept_token(running, made < forced.size() ? forced[made]
                                             : running.sampler.sample(logits, sequence.tokens));
}

void Scheduler::finish_prefill(Running& running) {
  const Sequence& sequence = *running.sequence;
  Answer& answer = running.answer;
  const auto now = Clock::now();
  const auto computed =
      static_cast<double>(answer.counters.prompt_tokens - answer.counters.reused_tokens);
  answer.timings.prefill_ms = ms_between(running.prefill_start, now);
  answer.timings.prefill_tok_s = computed * 1000.0 / answer.timings.prefill_ms;
  if (PrefixCache* cache = prefix_cache(*sequence.policy); cache && sequence.prefilled > 0) {
    cache->insert(std::span(sequence.tokens).first(sequence.prefilled), sequence.kv);
  }
}

void Scheduler::accept_token(Running& running, int32_t token) {
  Answer& answer = running.answer;
  const auto now = Clock::now();
  if (answer.tokens.empty())
    answer.timings.ttft_ms = ms_between(running.submitted, now);
  else
    running.token_ms.push_back(ms_between(running.last_token, now));
  running.last_token = now;
  answer.tokens.push_back(token);
  if (tokenizer_.is_end(token) && !running.request.ignore_end) {
    return finish(running, FinishReason::kEnd);
  }
  const std::string text = running.stop.push(running.decoder.push(token));
  answer.text += text;
  running.next_token = token;
  if (running.request.on_token && !running.request.on_token({token, text})) {
    return finish(running, FinishReason::kCancelled);
  }
  if (running.stop.stopped()) return finish(running, FinishReason::kStop);
  if (answer.tokens.size() >= running.request.max_tokens) {
    return finish(running, FinishReason::kLength);
  }
  const bool full = running.sequence->tokens.size() >= limits_.context;
  if (full && !running.sequence->policy->unbounded()) finish(running, FinishReason::kContext);
}

void Scheduler::finish(Running& running, FinishReason reason) {
  Answer& answer = running.answer;
  const std::string rest = running.stop.push(running.decoder.finish()) + running.stop.finish();
  if (!rest.empty()) {
    answer.text += rest;
    if (running.request.on_token && reason != FinishReason::kCancelled) {
      running.request.on_token({answer.tokens.back(), rest});
    }
  }
  answer.finish = reason;
  double total_ms = 0.0;
  for (const double ms : running.token_ms) total_ms += ms;
  if (total_ms > 0.0) {
    answer.timings.decode_tok_s = static_cast<double>(running.token_ms.size()) * 1000.0 / total_ms;
  }
  answer.timings.tpot_p50_ms = percentile(running.token_ms, 0.5);
  answer.timings.tpot_p99_ms = percentile(running.token_ms, 0.99);
  answer.counters.policy = running.sequence->policy->stats();
  answer.memory = {peak_rss_bytes(), pool_.used_bytes(), running.sequence->policy->state_bytes()};
  running.result = std::move(answer);
}

void Scheduler::deliver_finished() {
  const auto first = std::stable_partition(running_.begin(), running_.end(),
                                           [](const auto& running) { return !running->result; });
  std::vector<std::unique_ptr<Running>> finished(std::make_move_iterator(first),
                                                 std::make_move_iterator(running_.end()));
  running_.erase(first, running_.end());
  for (const auto& running : finished) {
    running->sequence->busy = false;
    if (running->on_done) running->on_done(std::move(*running->result));
  }
}

}  // namespace reprise
