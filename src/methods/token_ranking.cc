#include "methods/token_ranking.h"

#include <algorithm>

#include "kernels/ops.h"
#include "kernels/softmax.h"
#include "methods/top_k.h"

namespace reprise {
namespace {

constexpr size_t kFewKeys = 4096;  // for which threads meet once, not twice

}  // namespace

void TokenRanking::resize(size_t count) {
  using kernels::kPageTokens;
  count_ = count;
  stride_ = (count + kPageTokens - 1) / kPageTokens * kPageTokens;
  values_.resize(n_head_ * stride_);
  scores_.resize(picks_.size() * stride_);
}

void TokenRanking::rank_head(size_t kv_head, HeadJoin join, size_t candidates, size_t k) {
  if (join == HeadJoin::kRaw) pick(kv_head, candidates, k);
  const size_t group = n_head_ / picks_.size();
  for (size_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    kernels::softmax(logits(head), count_);
  }
  if (join == HeadJoin::kSoftmax) pick(kv_head, candidates, k);
}

void TokenRanking::rank(ThreadPool& pool, HeadJoin join, size_t candidates, size_t k) {
  const size_t kv_heads = picks_.size();
  if (count_ <= kFewKeys) {
    pool.run(kv_heads, [&](size_t kv_head, int) { rank_head(kv_head, join, candidates, k); });
    return;
  }
  const auto weigh = [&](size_t head, int) { kernels::softmax(logits(head), count_); };
  const auto choose = [&](size_t kv_head, int) { pick(kv_head, candidates, k); };
  if (join == HeadJoin::kRaw) pool.run(kv_heads, choose);
  pool.run(n_head_, weigh);
  if (join == HeadJoin::kSoftmax) pool.run(kv_heads, choose);
}

void TokenRanking::pick(size_t kv_head, size_t candidates, size_t k) {
  const size_t group = n_head_ / picks_.size();
  float* scores = scores_.data() + kv_head * stride_;
  std::copy_n(logits(kv_head * group), candidates, scores);
  for (size_t head = kv_head * group + 1; head < (kv_head + 1) * group; ++head) {
    kernels::add_scaled(scores, logits(head), 1.0f, candidates);
  }
  top_k({scores, candidates}, k, picks_[kv_head]);
}

}  // namespace reprise
