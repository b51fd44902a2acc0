#include "eval/run/measures.h"

#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace reprise::eval {
namespace {

// {"update_p50", 0.002} of "update_us_p50", 2: of figures whose names say that they are times.
std::optional<std::pair<std::string, double>> milliseconds(const std::string& name, double value) {
  for (const auto& [unit, ms] : {std::pair{std::string_view("_ms"), 1.0}, {"_us", 1e-3}}) {
    const size_t at = name.rfind(unit);
    if (at == std::string::npos) continue;
    const std::string rest = name.substr(at + unit.size());
    if (rest.empty() || rest.starts_with("_p")) return {{name.substr(0, at) + rest, ms * value}};
  }
  return std::nullopt;
}

}  // namespace

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
  for (const auto& [name, value] : counters.policy)
    if (!milliseconds(name, value)) numbers.emplace_back(name, value);
  return numbers;
}

NamedNumbers timing_of(const Answer& answer, bool alone) {
  NamedNumbers numbers = {{"prefill", answer.timings.prefill_ms},
                          {"ttft", answer.timings.ttft_ms},
                          {"select", answer.counters.select_ms}};
  for (const auto& [name, value] : answer.counters.policy)
    if (const auto time = milliseconds(name, value)) numbers.push_back(*time);
  if (alone) numbers.emplace_back("tpot_p50", answer.timings.tpot_p50_ms);
  return numbers;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace reprise::eval
