// One request and its answer: what goes in, what comes back, what it cost.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reprise/kv_tiers.h"
#include "reprise/options.h"
#include "reprise/progress.h"

namespace reprise {

struct Message {
  std::string role;  ///< "system", "user", "assistant"
  std::string content;
};

enum class FinishReason { kEnd, kLength, kStop, kContext, kCancelled };
/// "end" (the model ended), "length" (max_tokens), "stop" (a stop string), "context" (the context
/// is full), "cancelled".
std::string_view finish_reason_name(FinishReason reason);

/// One new token, as it is made. One that ends the answer because the model says so comes only if
/// it brings text that was held back.
struct TokenEvent {
  int32_t token = 0;
  std::string_view text;  ///< text that became complete with it; never splits UTF-8; may be empty
};
using TokenFn = std::function<bool(const TokenEvent&)>;  ///< returns false to stop
/// Logits [vocab] of the next token, before the sampler changes them.
using LogitsFn = std::function<void(std::span<const float>)>;

struct Request {
  std::vector<int32_t> prompt;  ///< the whole sequence so far; what is held is not re-read
  uint32_t max_tokens = 256;
  std::vector<std::string> stop;  ///< UTF-8; the answer ends before any of these
  bool ignore_end = false;        ///< go on past end-of-turn tokens (benchmarks)
  SamplingOptions sampling;
  std::vector<int32_t> forced;  ///< the first tokens of the answer, whatever the model would say
  LogitsFn on_logits;           ///< called once per token of the answer
  TokenFn on_token;
  ProgressFn on_progress;  ///< stage "prefill", in tokens, and of policies with an index "index"
};

struct Timings {
  double prefill_ms = 0;     ///< from the first prompt row to the last
  double prefill_tok_s = 0;  ///< computed prompt tokens per second
  double ttft_ms = 0;        ///< from submission to the first token
  double decode_tok_s = 0;
  double tpot_p50_ms = 0, tpot_p99_ms = 0;
};

/// Summed over layers and KV heads of the rows that were computed.
struct Counters {
  uint64_t prompt_tokens = 0;     ///< length of the prompt
  uint64_t reused_tokens = 0;     ///< of which KV was already there
  uint64_t keys_visible = 0;      ///< keys that full attention would read while decoding
  uint64_t keys_read = 0;         ///< keys that were read while decoding
  uint64_t kv_bytes_read = 0;     ///< bytes of pages of K and V read while decoding
  uint64_t full_kv_bytes = 0;     ///< that full attention would read
  uint64_t index_bytes_read = 0;  ///< bytes of its own structures that the policy read to choose
  double select_ms = 0;           ///< time the policy took to choose keys while decoding
  /// Of all requests that ran while this one decoded; see KvPaging.
  KvPaging paging;
  /// Figures of the policy's own, such as {"recovery", 0.97}.
  std::vector<std::pair<std::string, double>> policy;
};

struct Memory {
  uint64_t peak_rss = 0;     ///< of the process
  uint64_t kv_bytes = 0;     ///< pages in the memory where it is computed
  uint64_t index_bytes = 0;  ///< state of the policy
  KvTiers kv;                ///< of all sessions and prefixes
};

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kEnd;
  Timings timings;
  Counters counters;
  Memory memory;
};

}  // namespace reprise
