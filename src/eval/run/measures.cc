#include "eval/run/measures.h"

#include <numeric>

namespace reprise::eval {

NamedNumbers counters_of(const Answer& answer) {
  const Counters& counters = answer.counters;
  NamedNumbers numbers;
  if (answer.tokens.size() > 1) {
    const auto decoded = static_cast<double>(answer.tokens.size() - 1);
    const auto per_token = [&](uint64_t bytes) { return static_cast<double>(bytes) / decoded; };
    numbers = {{"kv_bytes_per_token", per_token(counters.kv_bytes_read)},
               {"full_kv_bytes_per_token", per_token(counters.full_kv_bytes)},
               {"index_bytes_read_per_token", per_token(counters.index_bytes_read)},
               {"keys_share", static_cast<double>(counters.keys_read) /
                                  static_cast<double>(counters.keys_visible)}};
  }
  numbers.emplace_back("index_bytes", static_cast<double>(answer.memory.index_bytes));
  numbers.insert(numbers.end(), counters.policy.begin(), counters.policy.end());
  return numbers;
}

NamedNumbers timing_of(const Answer& answer, bool alone) {
  NamedNumbers numbers = {{"prefill", answer.timings.prefill_ms},
                          {"ttft", answer.timings.ttft_ms},
                          {"select", answer.counters.select_ms}};
  if (alone) numbers.emplace_back("tpot_p50", answer.timings.tpot_p50_ms);
  return numbers;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace reprise::eval
