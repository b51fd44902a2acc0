// What evicting policies are compared with: attention in double over explicit lists of tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "attention/toy.h"

namespace reprise::testing {

using TokenList = std::vector<int32_t>;

/// Softmax of the toy's rotated queries and keys of one layer.
class AttentionOracle {
 public:
  AttentionOracle(Toy& toy, uint32_t layer, size_t tokens)
      : config_(toy.config()), toy_(toy), layer_(layer) {
    for (size_t token = 0; token < tokens; ++token) {
      append_rotated(toy.q(layer, token), config_.n_head, token, q_);
      append_rotated(toy.k(layer, token), config_.n_kv_head, token, k_);
    }
  }

  size_t group() const { return config_.n_head / config_.n_kv_head; }

  /// Probabilities of the row of token over keys, none of which is later than it.
  std::vector<double> probabilities(int32_t token, size_t head, const TokenList& keys) const {
    std::vector<double> p;
    double top = -INFINITY, mass = 0.0;
    const double* q = &q_[at(token, config_.n_head, head)];
    for (const int32_t key : keys) {
      const double* k = &k_[at(key, config_.n_kv_head, head / group())];
      double dot = 0.0;
      for (size_t i = 0; i < config_.head_dim; ++i) dot += q[i] * k[i];
      p.push_back(dot * config_.attention_scale);
      top = std::max(top, p.back());
    }
    for (double& x : p) mass += x = std::exp(x - top);
    for (double& x : p) x /= mass;
    return p;
  }

  std::vector<double> output(int32_t token, size_t head, const TokenList& keys) const {
    const auto p = probabilities(token, head, keys);
    std::vector<double> out(config_.head_dim);
    for (size_t n = 0; n < keys.size(); ++n) {
      const float* v =
          toy_.v(layer_, static_cast<size_t>(keys[n])) + head / group() * config_.head_dim;
      for (size_t i = 0; i < out.size(); ++i) out[i] += p[n] * v[i];
    }
    return out;
  }

  /// row: [n_head, head_dim], what the executor made of token from tokens[kv head].
  void expect_output(const float* row, int32_t token, const std::vector<TokenList>& tokens) const {
    for (size_t head = 0; head < config_.n_head; ++head) {
      const auto want = output(token, head, tokens[head / group()]);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(row[head * want.size() + i], want[i], kFloatTolerance)
            << "token " << token << " head " << head;
      }
    }
  }

 private:
  size_t at(int32_t token, size_t heads, size_t head) const {
    return (static_cast<size_t>(token) * heads + head) * config_.head_dim;
  }
  void append_rotated(const float* x, size_t heads, size_t token, std::vector<double>& out) const {
    std::vector<float> cos_sin(toy_.rope().pairs() * 2);
    toy_.rope().cos_sin(static_cast<int32_t>(token), cos_sin.data());
    for (size_t i = 0; i < heads * config_.head_dim; i += 2) {
      const size_t pair = i % config_.head_dim / 2;
      const double c = cos_sin[2 * pair], s = cos_sin[2 * pair + 1];
      out.push_back(x[i] * c - x[i + 1] * s);
      out.push_back(x[i] * s + x[i + 1] * c);
    }
  }

  ModelConfig config_;
  Toy& toy_;
  uint32_t layer_;
  std::vector<double> q_, k_;  // [tokens][heads, head_dim]
};

/// Notes which tokens every KV head of a layer is given to read, found by their values: works for
/// side pages too. The pool stores floats.
class Spy : public PolicyDecorator {
 public:
  Spy(std::unique_ptr<Policy> inner, Toy& toy, uint32_t layer, size_t tokens)
      : PolicyDecorator(std::move(inner)), config_(toy.config()), layer_(layer) {
    for (size_t head = 0; head < config_.n_kv_head; ++head) {
      auto& names = names_.emplace_back();
      for (size_t token = 0; token < tokens; ++token) {
        names[toy.v(layer, token)[head * config_.head_dim]] = static_cast<int32_t>(token);
      }
    }
  }

  std::unique_ptr<Policy> fork() const override { return std::make_unique<Spy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override {
    PolicyDecorator::select(rows, selection);
    if (rows.layer != layer_) return;
    tokens_.assign(config_.n_kv_head, {});
    index_bytes_ = selection.index_bytes_read;
    for (size_t head = 0; head < config_.n_kv_head; ++head) {
      TokenList& list = tokens_[head];
      if (selection.all) {
        for (int32_t token = 0; token < rows.end(); ++token) list.push_back(token);
      }
      for (const SelectionPart& part : selection.parts) {
        for (const KeyRange& range : part.list(0)) read(part, rows, head, range, list);
      }
      std::sort(list.begin(), list.end());
    }
  }

  /// [n_kv_head] of the last select(), ascending.
  const std::vector<TokenList>& tokens() const { return tokens_; }
  uint64_t index_bytes() const { return index_bytes_; }

 private:
  void read(const SelectionPart& part, const QueryRows& rows, size_t head, KeyRange range,
            TokenList& list) const {
    EXPECT_EQ(part.split, HeadSplit::kShared);
    const SequenceKv& kv = part.side ? *part.side : *rows.kv;
    const kernels::KvLayout& layout = kv.pool().layout();
    std::vector<float> v(config_.head_dim);
    for (int32_t key = range.begin; key < range.end; ++key) {
      const auto index = static_cast<size_t>(key);
      kernels::load_v(layout, kv.page(layer_, index / kPageTokens) + layout.v_offset(head),
                      index % kPageTokens, v.data());
      list.push_back(names_[head].at(v[0]));
      EXPECT_TRUE(part.side || list.back() == key);
    }
  }

  ModelConfig config_;
  uint32_t layer_;
  std::vector<std::map<float, int32_t>> names_;  // [n_kv_head] first value of a token -> token
  std::vector<TokenList> tokens_;
  uint64_t index_bytes_ = 0;
};

/// Shapes with 1, 2, 3, 4 and 9 query heads per KV head.
inline const ToyShape kGroupShapes[] = {
    {2, 2, 2, 64}, {2, 4, 2, 80}, {2, 6, 2, 64}, {2, 8, 2, 128}, {2, 9, 1, 64}};

/// Last row of a step's output for the last layer.
inline const float* last_row(const Toy& toy, const std::vector<float>& out) {
  return &out[out.size() - toy.width()];
}

}  // namespace reprise::testing
