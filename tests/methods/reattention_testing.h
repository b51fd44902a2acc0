// What rows of ReAttention that choose for themselves read, by definition.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "methods/reattention/reattention.h"
#include "methods/selecting.h"

namespace reprise::testing {

inline constexpr const char* kLookFar =
    "reattention:sink=5,local=40,span=1,spans=200,decode-picks=3,activate=60,stride=0,score=raw";

/// By definition: the keys that a row reads of [5, row - 40], and the heads that lead.
struct Expected {
  std::set<int32_t> every, leading;  // keys of all voting heads, of those that lead
  std::vector<int32_t> best;         // of each that leads
  uint32_t heads = 0;
};

inline Expected expected(Toy& toy, uint32_t layer, size_t row, double lead,
                         const std::set<size_t>& vote) {
  const ModelConfig& config = toy.config();
  const size_t dim = config.head_dim, group = config.n_head / config.n_kv_head;
  Expected result;
  for (const size_t head : vote) {
    std::vector<std::pair<double, int32_t>> scores;
    for (size_t key = 5; key < row + 1 - 40; ++key) {
      const float* k = toy.k(layer, key) + head / group * dim;
      scores.emplace_back(dot(toy.q(layer, row) + head * dim, k, dim), key);
    }
    std::sort(scores.rbegin(), scores.rend());
    const bool leads = (scores[0].first - scores[15].first) * config.attention_scale >= lead;
    result.heads += leads ? 1 : 0;
    if (leads) result.best.push_back(scores[0].second);
    for (size_t i = 0; i < 3; ++i) {
      result.every.insert(scores[i].second);
      if (leads) result.leading.insert(scores[i].second);
    }
  }
  return result;
}

inline std::set<int32_t> far_keys(const Recorder::Seen& seen, int32_t row) {
  std::set<int32_t> keys;
  for (const int32_t key : keys_of(seen.selection.parts.at(0), 0)) {
    if (key >= 5 && key < row - 39) keys.insert(key);
  }
  return keys;
}

/// The last rows of a prompt of 300 and decoded ones, each by itself.
inline Outputs outputs_of(Toy& toy, Policy& policy, SequenceKv& kv, size_t rows) {
  Outputs outputs;
  for (size_t i = 0; i < rows; ++i) {
    const kernels::Phase phase =
        kv.length() < 300 ? kernels::Phase::kPrefill : kernels::Phase::kDecode;
    outputs.push_back(toy.step(kv, policy, 1, phase));
  }
  return outputs;
}

inline Outputs outputs_of(const std::string& options) {
  Toy toy({2, 6, 2, 64, kernels::KvType::kBF16}, 330);
  toy.prompt_end = 300;
  const auto policy = make_policy(toy, std::string(kLookFar) + options);
  SequenceKv kv = toy.new_sequence();
  for (size_t token = 0; token < 280; token += 20)
    toy.step(kv, *policy, 20, kernels::Phase::kPrefill);
  return outputs_of(toy, *policy, kv, 50);
}

}  // namespace reprise::testing
