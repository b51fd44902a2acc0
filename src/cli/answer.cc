#include "cli/answer.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/bench.h"
#include "cli/text.h"

namespace reprise::cli {
namespace {

// Of tiers below memory, where there are any.
std::string tiers_text(const KvTiers& kv) {
  std::string text;
  for (const auto& [name, tier] : {std::pair{"host", &kv.host}, std::pair{"disk", &kv.disk}}) {
    if (tier->limit_bytes == 0) continue;
    text += fmt::format(", {} on {} ({} moved in, {} out)", bytes_text(tier->bytes), name,
                        bytes_text(tier->moved_in_bytes), bytes_text(tier->moved_out_bytes));
  }
  if (kv.lost_pages > 0) {
    text += fmt::format("; {} pages could not be read back and were computed again",
                        grouped(kv.lost_pages));
  }
  if (!kv.disk_error.empty()) text += "; " + kv.disk_error;
  return text;
}

// Of a decoded token on average; the first token comes of the prompt.
nlohmann::ordered_json per_step_json(const Answer& answer) {
  const Counters& c = answer.counters;
  const auto steps = static_cast<double>(std::max<size_t>(2, answer.tokens.size()) - 1);
  const auto mean = [&](uint64_t sum) { return static_cast<double>(sum) / steps; };
  return {{"keys_read", mean(c.keys_read)},
          {"kv_bytes_read", mean(c.kv_bytes_read)},
          {"index_bytes_read", mean(c.index_bytes_read)},
          {"select_ms", c.select_ms / steps}};
}

}  // namespace

nlohmann::ordered_json answer_json(const Answer& answer, const ModelInfo& model) {
  const Timings& t = answer.timings;
  const Counters& c = answer.counters;
  auto figures = nlohmann::ordered_json::object();
  for (const auto& [name, value] : c.policy) figures[name] = value;
  return {
      {"text", answer.text},
      {"tokens", answer.tokens},
      {"finish_reason", finish_reason_name(answer.finish)},
      {"timings",
       {{"load_ms", model.load_ms},
        {"prefill_ms", t.prefill_ms},
        {"prefill_tok_s", t.prefill_tok_s},
        {"ttft_ms", t.ttft_ms},
        {"decode_tok_s", t.decode_tok_s},
        {"tpot_p50_ms", t.tpot_p50_ms},
        {"tpot_p99_ms", t.tpot_p99_ms}}},
      {"counters",
       {{"prompt_tokens", c.prompt_tokens},
        {"reused_tokens", c.reused_tokens},
        {"keys_visible", c.keys_visible},
        {"keys_read", c.keys_read},
        {"kv_bytes_read", c.kv_bytes_read},
        {"full_kv_bytes", c.full_kv_bytes},
        {"index_bytes_read", c.index_bytes_read},
        {"select_ms", c.select_ms},
        {"per_step", per_step_json(answer)},
        {"paging", paging_json(c.paging)},
        {"policy", figures}}},
      {"memory",
       {{"peak_rss", answer.memory.peak_rss},
        {"kv_bytes", answer.memory.kv_bytes},
        {"index_bytes", answer.memory.index_bytes},
        {"kv_tiers", tiers_json(answer.memory.kv)}}},
  };
}

std::string answer_summary(const Answer& answer, const ModelInfo& model) {
  const Timings& t = answer.timings;
  const Counters& c = answer.counters;
  std::string text = fmt::format("load {:.2f} s; read {} tokens in {:.2f} s", model.load_ms / 1e3,
                                 grouped(c.prompt_tokens - c.reused_tokens), t.prefill_ms / 1e3);
  if (t.prefill_tok_s > 0)
    text += fmt::format(" ({}/s)", grouped(static_cast<uint64_t>(t.prefill_tok_s)));
  if (c.reused_tokens > 0) text += fmt::format(", reused {}", grouped(c.reused_tokens));
  text += fmt::format("; first token after {:.2f} s; wrote {} tokens", t.ttft_ms / 1e3,
                      grouped(answer.tokens.size()));
  if (t.decode_tok_s > 0) text += fmt::format(" ({:.1f}/s)", t.decode_tok_s);
  if (c.keys_visible > 0 && c.keys_read < c.keys_visible) {
    text += fmt::format("; read {:.1f} % of the keys", 100.0 * static_cast<double>(c.keys_read) /
                                                           static_cast<double>(c.keys_visible));
  }
  if (c.paging.read_bytes > 0) {
    text += fmt::format("; {:.1f} % of the pages were in memory, waited {:.0f} ms for the others",
                        100.0 * c.paging.hit_rate(), c.paging.wait_ms);
  }
  return text +
         fmt::format("; memory {}, of which KV {}", bytes_text(answer.memory.peak_rss),
                     bytes_text(answer.memory.kv_bytes)) +
         tiers_text(answer.memory.kv);
}

std::string finish_remark(const Answer& answer, const ModelInfo& model) {
  switch (answer.finish) {
    case FinishReason::kLength:
      return fmt::format("the answer was cut at {} tokens; --max-tokens raises the limit",
                         grouped(answer.tokens.size()));
    case FinishReason::kContext:
      return fmt::format("the context of {} tokens is full, which cut the answer; --ctx raises it",
                         grouped(model.context));
    case FinishReason::kCancelled:
      return "stopped";
    case FinishReason::kEnd:
    case FinishReason::kStop:
      break;
  }
  return {};
}

}  // namespace reprise::cli
