// From approximate logits of query heads to the keys that their KV head reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kv_page.h"

namespace reprise {

/// How the query heads of a KV head are joined: by the sum of their softmax weights, or of their
/// logits as they are.
enum class HeadJoin : uint8_t { kSoftmax, kRaw };

/// Scratch of one policy; reused by every layer and step.
class TokenRanking {
 public:
  TokenRanking(uint32_t n_head, uint32_t n_kv_head) : n_head_(n_head), picks_(n_kv_head) {}

  /// Makes room for the logits of count keys.
  void resize(size_t count);
  float* logits(size_t head) { return &values_[head * stride_]; }  // [count]
  size_t stride() const { return stride_; }  // floats between heads; a multiple of 16

  /// Turns the logits of every head into softmax weights over all count keys and picks, for each KV
  /// head, the k best of the first `candidates` keys.
  void rank(ThreadPool& pool, HeadJoin join, size_t candidates, size_t k);
  /// Of one KV head; may be called for several at once.
  void rank_head(size_t kv_head, HeadJoin join, size_t candidates, size_t k);
  const float* weights(size_t head) const { return &values_[head * stride_]; }      // [count]
  std::span<const int32_t> picks(size_t kv_head) const { return picks_[kv_head]; }  // ascending

 private:
  void pick(size_t kv_head, size_t candidates, size_t k);

  size_t n_head_, count_ = 0, stride_ = 0;
  std::vector<float> values_;                // [n_head, stride]: logits, then weights
  std::vector<float> scores_;                // [n_kv_head, stride]
  std::vector<std::vector<int32_t>> picks_;  // [n_kv_head]
};

}  // namespace reprise
