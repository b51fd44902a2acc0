#include "methods/reattention/scan.h"

#include <algorithm>

#include "kernels/ops.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

constexpr size_t kTaskRows = 256, kThreadTasks = 4, kMinPages = 16;

size_t pieces_of(size_t count, size_t size) { return (count + size - 1) / size; }

/// Scans of one layer: a task is some queries of one KV head and some of the pages.
class Scan {
 public:
  Scan(const QueryRows& rows, std::span<const size_t> which, KeyRange keys, size_t k,
       std::span<const float> angles, const ModelConfig& config)
      : rows_(rows),
        which_(which),
        keys_(keys),
        k_(k),
        angles_(angles),
        heads_(config.n_head),
        kv_heads_(config.n_kv_head),
        group_(config.n_head / config.n_kv_head),
        dim_(config.head_dim),
        queries_(which.size() * group_),
        tiles_(pieces_of(queries_, kTaskRows)) {
    const auto tokens = static_cast<size_t>(keys.end - keys.begin);
    const size_t most = std::max<size_t>(1, tokens / (kMinPages * kPageTokens));
    pieces_ = std::min(
        most, pieces_of(kThreadTasks * static_cast<size_t>(rows.pool->size()), kv_heads_ * tiles_));
  }

  std::vector<kernels::RankedKey> run() {
    gather();
    found_.resize(kv_heads_ * pieces_ * queries_ * k_);
    rows_.pool->run(kv_heads_ * tiles_ * pieces_, [&](size_t task, int) {
      scan(task / (tiles_ * pieces_), task / pieces_ % tiles_, task % pieces_);
    });
    std::vector<kernels::RankedKey> best(which_.size() * heads_ * k_);
    rows_.pool->run(kv_heads_, [&](size_t kv_head, int) { merge(kv_head, best); });
    return best;
  }

 private:
  // queries_of(kv_head): [rows, group, dim]
  void gather() {
    q_.resize(kv_heads_ * queries_ * dim_);
    rows_.pool->run(which_.size(), [&](size_t row, int) {
      for (size_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
        const float* from = rows_.q + (which_[row] * heads_ + kv_head * group_) * dim_;
        float* q = &q_[(kv_head * queries_ + row * group_) * dim_];
        std::copy_n(from, group_ * dim_, q);
        if (!angles_.empty()) kernels::rope(q, angles_.data(), group_, dim_, angles_.size() / 2);
      }
    });
  }

  void scan(size_t kv_head, size_t tile, size_t piece) {
    const size_t first = tile * kTaskRows;
    kernels::KeyTopKArgs args;
    args.layout = &rows_.kv->pool().layout();
    args.phase = rows_.phase;
    args.rows = std::min(kTaskRows, queries_ - first);
    args.q = &q_[(kv_head * queries_ + first) * dim_];
    args.q_stride = dim_;
    args.k = k_;
    args.best = &found_[((kv_head * pieces_ + piece) * queries_ + first) * k_];
    const auto cut = [&](size_t at) {
      const auto tokens = static_cast<size_t>(keys_.end - keys_.begin);
      return keys_.begin + static_cast<int32_t>(tokens * at / pieces_);
    };
    std::vector<kernels::PageSpan> pages;
    list_pages(rows_, kv_head, cut(piece), cut(piece + 1), pages);
    args.pages = pages;
    std::vector<std::byte> scratch(kernels::key_top_k_scratch_bytes(args));
    kernels::key_top_k(args, scratch.data());
  }

  void merge(size_t kv_head, std::vector<kernels::RankedKey>& best) const {
    std::vector<kernels::RankedKey> all(pieces_ * k_);
    for (size_t query = 0; query < queries_; ++query) {
      for (size_t piece = 0; piece < pieces_; ++piece) {
        const size_t list = (kv_head * pieces_ + piece) * queries_ + query;
        std::copy_n(&found_[list * k_], k_, &all[piece * k_]);
      }
      if (pieces_ > 1) {
        std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(k_), all.end(),
                          kernels::ranks_before);
      }
      const size_t row = query / group_, head = kv_head * group_ + query % group_;
      std::copy_n(all.begin(), k_, &best[(row * heads_ + head) * k_]);
    }
  }

  const QueryRows& rows_;
  std::span<const size_t> which_;
  KeyRange keys_;
  size_t k_;
  std::span<const float> angles_;
  size_t heads_, kv_heads_, group_, dim_, queries_, tiles_, pieces_;
  std::vector<float> q_;                   // [kv_heads, queries, dim]
  std::vector<kernels::RankedKey> found_;  // [kv_heads, pieces, queries, k]
};

}  // namespace

std::vector<kernels::RankedKey> best_keys(const QueryRows& rows, std::span<const size_t> which,
                                          KeyRange keys, size_t k, std::span<const float> angles,
                                          const ModelConfig& config) {
  return Scan(rows, which, keys, k, angles, config).run();
}

}  // namespace reprise
