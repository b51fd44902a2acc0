// Attention probabilities of query rows over the keys that an evicting policy still has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/key_logits.h"
#include "kv/sequence_kv.h"
#include "model/config.h"

namespace reprise {

/// What attention needs to know of a model.
struct AttentionShape {
  explicit AttentionShape(const ModelConfig& config)
      : n_head(config.n_head),
        n_kv_head(config.n_kv_head),
        group(config.n_head / config.n_kv_head),
        head_dim(config.head_dim),
        scale(config.attention_scale),
        soft_cap(config.attention_soft_cap) {}

  size_t n_head, n_kv_head, group, head_dim;  // group: query heads of a KV head
  float scale, soft_cap;
};

/// Keys of a layer, numbered in this order: tokens [0, side) of side pages, then tokens [begin,
/// end) of the sequence.
struct KeptKeys {
  uint32_t layer = 0;
  int32_t side = 0, begin = 0, end = 0;

  size_t count() const { return static_cast<size_t>(side + end - begin); }
};

/// Rows at consecutive positions of query heads [head, head + heads), all of one KV head.
struct ScoredRows {
  const float* q = nullptr;  // [rows][stride]: rotated, of head on
  size_t stride = 0;         // floats between rows
  size_t rows = 0;
  int32_t first = 0;  // position of the first row
  size_t head = 0, heads = 0;
};

class KeptScores {
 public:
  /// side: null when keys.side is 0.
  KeptScores(const AttentionShape& shape, const SequenceKv& kv, const SequenceKv* side,
             const KeptKeys& keys)
      : shape_(shape), kv_(kv), side_(side), keys_(keys) {}

  /// Calls add(p) with p [keys that the row sees] for every row and, within a row, every head, in
  /// order. Softmax in float; uses no threads.
  template <class Add>
  void for_each(const ScoredRows& rows, Add&& add) const {
    const auto spans = page_spans(rows.head / shape_.group);
    const size_t stride = spans.size() * kPageTokens;
    std::vector<float> logits(std::min(kBlockRows, rows.rows) * rows.heads * stride);
    for (size_t first = 0; first < rows.rows; first += kBlockRows) {
      const size_t count = std::min(kBlockRows, rows.rows - first);
      fill_logits(rows, first, count, spans, logits.data());
      for (size_t i = 0; i < count * rows.heads; ++i) {
        add(probabilities(rows.first + static_cast<int32_t>(first + i / rows.heads),
                          &logits[i * stride]));
      }
    }
  }
  /// Bytes of K that one for_each() reads per KV head and block of rows.
  uint64_t bytes_read() const;

 private:
  static constexpr size_t kBlockRows = 4;  // rows that share a pass over the keys

  size_t side_pages() const { return PageMap::blocks_of(static_cast<size_t>(keys_.side)); }
  std::vector<kernels::PageSpan> page_spans(size_t kv_head) const;
  void fill_logits(const ScoredRows& rows, size_t first, size_t count,
                   std::span<const kernels::PageSpan> spans, float* out) const;
  std::span<const float> probabilities(int32_t position, float* logits) const;

  AttentionShape shape_;
  const SequenceKv& kv_;
  const SequenceKv* side_;
  KeptKeys keys_;
};

}  // namespace reprise
