// What the scheduler does with results: it chooses tokens and makes answers of them.
#include <algorithm>

#include "base/percentile.h"
#include "base/system.h"
#include "engine/scheduler.h"

namespace reprise {
namespace {

double ms_between(std::chrono::steady_clock::time_point from,
                  std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace

bool Scheduler::holds_answer(const Sequence& sequence, std::span<const int32_t> prompt) {
  if (sequence.logits.empty() || !std::ranges::equal(sequence.tokens, prompt)) return false;
  const auto end = static_cast<int32_t>(prompt.size());
  return sequence.policy->observed_prompt_rows(end, end) == 0;
}

void Scheduler::begin_answer(Running& running) {
  Sequence& sequence = *running.sequence;
  sequence.policy->clear_stats();
  std::vector<float> logits = std::move(sequence.logits);
  wake(running);
  const size_t held = sequence.tokens.size(), prompt = running.request.prompt.size();
  running.answer.counters.prompt_tokens = prompt;
  running.answer.counters.reused_tokens = held;
  running.prefill_start = Clock::now();
  if (running.result || held < prompt) return;  // lost on disk: the rest is computed
  if (!report_prefill(running)) return;
  finish_prefill(running);
  if (running.request.max_tokens == 0) return finish(running, FinishReason::kLength);
  choose_token(running, logits);
}

bool Scheduler::report_prefill(Running& running) {
  if (!running.report) return true;
  const size_t read = running.sequence->tokens.size(), prompt = running.request.prompt.size();
  if (running.report({"prefill", read, prompt, "tokens"})) return true;
  running.result =
      fail(ErrorCode::kCancelled, "cancelled after reading {} of {} prompt tokens", read, prompt);
  return false;
}

void Scheduler::choose_token(Running& running, std::span<float> logits) {
  if (running.request.on_logits) running.request.on_logits(logits);
  if (running.cancelled) return;
  const size_t made = running.answer.tokens.size();
  const auto& forced = running.request.forced;
  const auto& known = running.sequence->tokens;
  accept_token(running,
               made < forced.size() ? forced[made] : running.sampler.sample(logits, known));
}

void Scheduler::finish_prefill(Running& running) {
  const Sequence& sequence = *running.sequence;
  Answer& answer = running.answer;
  const auto now = Clock::now();
  running.paging = pool_.paging();
  const auto computed =
      static_cast<double>(answer.counters.prompt_tokens - answer.counters.reused_tokens);
  answer.timings.prefill_ms = ms_between(running.prefill_start, now);
  answer.timings.prefill_tok_s = computed * 1000.0 / answer.timings.prefill_ms;
  if (prefix_cache(*sequence.policy) == nullptr || sequence.restored) return;
  keep_prefix(sequence);
  share_state(sequence, answer.counters.prompt_tokens);
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
  const bool is_last = answer.tokens.size() >= running.request.max_tokens;
  const bool full =
      running.sequence->tokens.size() >= limits_.context && !running.sequence->policy->unbounded();
  std::string text = running.stop.push(running.decoder.push(token));
  if (is_last || full) text += running.take_held();  // no other token brings it
  answer.text += text;
  running.next_token = token;
  if (running.request.on_token && !running.request.on_token({token, text})) {
    return finish(running, FinishReason::kCancelled);
  }
  if (running.cancelled) return;
  if (running.stop.stopped()) return finish(running, FinishReason::kStop);
  if (is_last) return finish(running, FinishReason::kLength);
  if (full) finish(running, FinishReason::kContext);
}

std::string Scheduler::Running::take_held() {
  std::string text = stop.push(decoder.finish());
  text += stop.finish();
  return text;
}

void Scheduler::finish(Running& running, FinishReason reason) {
  Answer& answer = running.answer;
  const std::string rest = running.take_held();
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
  answer.counters.paging = pool_.paging() - running.paging;
  const KvTiers kv = pool_.tiers();
  answer.memory = {peak_rss_bytes(), kv.memory.bytes, running.sequence->policy->state_bytes(), kv};
  running.result = std::move(answer);
}

}  // namespace reprise
