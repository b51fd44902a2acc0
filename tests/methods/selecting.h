// What tests of selecting policies share: recorded selections and attention over them in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "attention/toy.h"
#include "methods/registry.h"

namespace reprise::testing {

inline std::unique_ptr<Policy> make_policy(const Toy& toy, std::string_view spec) {
  auto policy = create_policy(policy_entries(), spec, toy.config());
  EXPECT_TRUE(policy) << policy.error().message;
  return std::move(*policy);
}

using Outputs = std::vector<std::vector<float>>;

/// Decodes tokens; their outputs.
inline Outputs decode(Toy& toy, Policy& policy, SequenceKv& kv, size_t count) {
  Outputs outputs;
  for (size_t i = 0; i < count; ++i) {
    outputs.push_back(toy.step(kv, policy, 1, kernels::Phase::kDecode));
  }
  return outputs;
}

/// Reads a prompt in chunks, then decodes; outputs of the decoded rows.
inline Outputs run(Toy& toy, Policy& policy, SequenceKv& kv, std::span<const size_t> chunks,
                   size_t decoded) {
  for (const size_t chunk : chunks) toy.step(kv, policy, chunk, kernels::Phase::kPrefill);
  return decode(toy, policy, kv, decoded);
}

/// Remembers, for every layer, the last selection and the queries it was made for.
class Recorder : public PolicyDecorator {
 public:
  struct Seen {
    Selection selection;
    std::vector<float> q_rotated;  // [n_head, head_dim] of the last row
  };
  Recorder(std::unique_ptr<Policy> inner, const ModelConfig& config)
      : PolicyDecorator(std::move(inner)), width_(size_t{config.n_head} * config.head_dim) {}
  Recorder(const Toy& toy, std::string_view spec)
      : Recorder(make_policy(toy, spec), toy.config()) {}

  std::unique_ptr<Policy> fork() const override { return std::make_unique<Recorder>(*this); }
  void select(const QueryRows& rows, Selection& selection) override {
    inner().select(rows, selection);
    const float* last = rows.q_rotated + (rows.rows.size() - 1) * width_;
    seen[rows.layer] = {selection, {last, last + width_}};
  }

  std::map<uint32_t, Seen> seen;

 private:
  size_t width_;
};

/// Other queries, keys and values for tokens [first, last).
inline void change_tokens(Toy& toy, size_t first, size_t last) {
  const size_t kv_width = toy.config().n_kv_head * size_t{toy.config().head_dim};
  for (uint32_t layer = 0; layer < toy.config().n_layer; ++layer) {
    std::reverse(toy.q(layer, first), toy.q(layer, last - 1) + toy.width());
    std::reverse(toy.k(layer, first), toy.k(layer, last - 1) + kv_width);
    std::reverse(toy.v(layer, first), toy.v(layer, last - 1) + kv_width);
  }
}

inline std::vector<int32_t> keys_of(const SelectionPart& part, size_t list) {
  std::vector<int32_t> keys;
  for (const KeyRange& range : part.list(list)) {
    EXPECT_LT(range.begin, range.end);
    EXPECT_TRUE(keys.empty() || keys.back() < range.begin);
    for (int32_t key = range.begin; key < range.end; ++key) keys.push_back(key);
  }
  return keys;
}

/// The list of a query head in the only part of a selection.
inline size_t list_of(const SelectionPart& part, const ModelConfig& config, size_t head) {
  if (part.split == HeadSplit::kShared) return 0;
  return part.split == HeadSplit::kPerQueryHead ? head : head / (config.n_head / config.n_kv_head);
}

inline std::vector<float> stored(const SequenceKv& kv, uint32_t layer, size_t head, int32_t token,
                                 bool value = false) {
  const kernels::KvLayout& layout = kv.pool().layout();
  const auto at = static_cast<size_t>(token);
  const std::byte* page = kv.page(layer, at / kPageTokens);
  std::vector<float> row(layout.head_dim);
  if (value)
    kernels::load_v(layout, page + layout.v_offset(head), at % kPageTokens, row.data());
  else
    kernels::load_k(layout, page + layout.k_offset(head), at % kPageTokens, row.data());
  return row;
}

inline double dot(const float* a, const float* b, size_t n) {
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

/// Softmax weights of a query head over keys, with biases if there are any, in double.
inline std::vector<double> weights(const Toy& toy, const SequenceKv& kv, uint32_t layer,
                                   const float* q, size_t kv_head, std::span<const int32_t> keys,
                                   std::span<const float> bias = {}) {
  std::vector<double> shares;
  double total = 0.0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto key = stored(kv, layer, kv_head, keys[i]);
    const double logit = dot(q, key.data(), key.size()) * toy.config().attention_scale;
    shares.push_back(std::exp(logit + (bias.empty() ? 0.0 : double{bias[i]})));
    total += shares.back();
  }
  for (double& share : shares) share /= total;
  return shares;
}

/// Output of a query head over a selection of one part, in double. Keys are stored rotated.
inline std::vector<double> selected_output(const Toy& toy, const SequenceKv& kv, uint32_t layer,
                                           const Recorder::Seen& seen, size_t head) {
  const ModelConfig& config = toy.config();
  const SelectionPart& part = seen.selection.parts.at(0);
  const size_t kv_head = head / (config.n_head / config.n_kv_head);
  const size_t list = list_of(part, config, head);
  const auto keys = keys_of(part, list);
  size_t skipped = 0;
  for (size_t i = 0; i < list; ++i) skipped += keys_of(part, i).size();
  const auto bias = part.bias.empty() ? std::span<const float>{}
                                      : std::span(part.bias).subspan(skipped, keys.size());
  const float* q = &seen.q_rotated[head * config.head_dim];
  const auto shares = weights(toy, kv, layer, q, kv_head, keys, bias);
  std::vector<double> out(config.head_dim);
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto value = stored(kv, layer, kv_head, keys[i], true);
    for (size_t d = 0; d < out.size(); ++d) out[d] += shares[i] * value[d];
  }
  const MeanValue& mean = seen.selection.mean;
  for (size_t d = 0; d < out.size() && !mean.alpha.empty(); ++d) {
    const double alpha = mean.alpha[head];
    out[d] = alpha * out[d] + (1 - alpha) * mean.value[kv_head * config.head_dim + d];
  }
  return out;
}

/// Picks are count of the candidates with the largest scores, up to the rounding of scores.
inline void expect_best(std::span<const int32_t> picks, std::span<const double> scores,
                        size_t count, double tolerance) {
  ASSERT_EQ(picks.size(), count);
  std::vector<bool> picked(scores.size());
  double least = INFINITY;
  for (const int32_t pick : picks) {
    picked[static_cast<size_t>(pick)] = true;
    least = std::min(least, scores[static_cast<size_t>(pick)]);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!picked[i]) {
      EXPECT_LE(scores[i], least + tolerance) << i;
    }
  }
}

}  // namespace reprise::testing
