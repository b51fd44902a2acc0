#include "engine/cuda/pass_inputs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/try.h"

namespace reprise {
namespace {

constexpr std::string_view kWhat = "copying a pass's rows";

constexpr size_t kMinHistory = 128;  // tokens

kernels::cuda::SampleRule rule_of(const SamplingOptions& options) {
  kernels::cuda::SampleRule rule;
  rule.temp = options.temp;
  rule.top_p = options.top_p;
  rule.min_p = options.min_p;
  rule.repeat_penalty = options.repeat_penalty;
  rule.top_k = options.top_k;
  rule.repeat_window = options.repeat_penalty == 1.0f ? 0 : options.repeat_window;
  rule.seed = options.seed;
  return rule;
}

}  // namespace

Status PassInputs::reserve(size_t rows, size_t results) {
  results_ = results;
  for (auto* array : {&tokens, &positions}) REPRISE_CHECK(array->reserve(rows, kWhat));
  REPRISE_CHECK(sequences.reserve(rows, kWhat));
  REPRISE_CHECK(prefill_results.reserve(results, kWhat));
  REPRISE_CHECK(prefill.reserve(results, kWhat));
  REPRISE_CHECK(result_positions.reserve(results, kWhat));
  REPRISE_CHECK(rules.reserve(results, kWhat));
  history_capacity = kMinHistory;
  return history.reserve(results * history_capacity, kWhat);
}

Status PassInputs::send(const ForwardPass& pass, uint32_t decode_rows,
                        std::span<const kernels::cuda::PrefillRows> prefill_steps, uint32_t turn,
                        cudaStream_t stream) {
  stage_rows(pass, decode_rows, turn);
  std::copy(prefill_steps.begin(), prefill_steps.end(), prefill.staged(turn));
  const size_t rows = pass.rows.size(), results = pass.results.size();
  REPRISE_CHECK(tokens.send(turn, rows, stream));
  REPRISE_CHECK(positions.send(turn, rows, stream));
  REPRISE_CHECK(sequences.send(turn, rows, stream));
  REPRISE_CHECK(prefill_results.send(turn, results - decode_rows, stream));
  REPRISE_CHECK(prefill.send(turn, prefill_steps.size(), stream));
  REPRISE_CHECK(result_positions.send(turn, results, stream));
  return stage_rules(pass, turn, stream);
}

void PassInputs::stage_rows(const ForwardPass& pass, uint32_t decode_rows, uint32_t turn) {
  for (size_t i = 0; i < pass.rows.size(); ++i) {
    tokens.staged(turn)[i] = pass.rows[i].token;
    positions.staged(turn)[i] = pass.rows[i].position;
    sequences.staged(turn)[i] = pass.rows[i].sequence;
  }
  for (size_t i = 0; i < pass.results.size(); ++i) {
    const uint32_t row = pass.results[i].row;
    result_positions.staged(turn)[i] = pass.rows[row].position;
    if (i >= decode_rows) prefill_results.staged(turn)[i - decode_rows] = row - decode_rows;
  }
}

Status PassInputs::stage_rules(const ForwardPass& pass, uint32_t turn, cudaStream_t stream) {
  size_t window = 0;
  for (size_t i = 0; i < pass.results.size(); ++i) {
    const SamplingOptions* sampling = pass.results[i].sampling;
    rules.staged(turn)[i] = rule_of(sampling != nullptr ? *sampling : SamplingOptions());
    window = std::max<size_t>(window, rules.staged(turn)[i].repeat_window);
  }
  REPRISE_CHECK(rules.send(turn, pass.results.size(), stream));
  if (window == 0) return {};
  if (window >= history_capacity) {
    REPRISE_CUDA(cudaStreamSynchronize(stream), kWhat);
    const size_t capacity = std::bit_ceil(window + 1);
    kernels::cuda::StagedArray<int32_t> longer;  // beside the old one, which stays without memory
    REPRISE_CHECK(longer.reserve(results_ * capacity, kWhat));
    history = std::move(longer);
    history_capacity = static_cast<uint32_t>(capacity);
  }
  for (size_t i = 0; i < pass.results.size(); ++i) {
    int32_t* ring = history.staged(turn) + i * history_capacity;
    const auto known = pass.results[i].history;
    const auto position = static_cast<size_t>(result_positions.staged(turn)[i]);
    for (size_t p = known.size() - std::min(known.size(), window); p < known.size(); ++p) {
      ring[p % history_capacity] = known[p];
    }
    ring[position % history_capacity] = pass.rows[pass.results[i].row].token;
  }
  return history.send(turn, pass.results.size() * history_capacity, stream);
}

}  // namespace reprise
