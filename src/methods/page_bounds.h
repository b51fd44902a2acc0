// Channel-wise smallest and largest keys of every full page, kept while a sequence grows.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/policy.h"

namespace reprise {

/// The bounds of 16 pages lie like the keys of one bf16 page: a K tile of largest values and one of
/// smallest ones, slot t for page t. So q.k of the tiles with the positive and the negative part of
/// q adds up to the upper bound (Tang et al. 2024, eq. 2). Values are rounded outward to bf16.
class PageBounds {
 public:
  explicit PageBounds(const ModelConfig& config);

  /// Takes in the full pages below rows.end() of the rows' layer; the pool computes.
  void update(const QueryRows& rows);
  /// scores: [n_kv_head, pages] the largest bound over the query heads of each KV head, for the one
  /// row of a decode step. Returns the bytes of bounds that were read.
  uint64_t score(const QueryRows& rows, size_t pages, std::vector<float>& scores);
  /// Keys of a layer that are taken in.
  int32_t end(uint32_t layer) const {
    return static_cast<int32_t>(layers_[layer].pages * kPageTokens);
  }
  void truncate(int32_t length);
  uint64_t bytes() const;

 private:
  struct alignas(64) Line {
    uint16_t values[32];
  };
  struct Layer {
    size_t pages = 0;                      // whose bounds are in
    std::vector<std::vector<Line>> heads;  // [n_kv_head][groups of 16 pages][2 tiles]
  };

  size_t group_lines() const { return layout_.head_dim; }  // of both tiles
  void take_page(const QueryRows& rows, std::vector<Line>& lines, size_t head, size_t page) const;
  void split_query(const float* q);
  void score_groups(const std::vector<Line>& lines, size_t head, size_t first, size_t end,
                    size_t pages, float* scores);

  uint32_t n_head_, n_kv_head_;
  kernels::KvLayout layout_;  // of the bounds
  std::vector<Layer> layers_;
  std::vector<float> q_parts_;  // [n_kv_head][2 signs][group, head_dim]
  std::vector<float> bounds_;   // [n_head][pages rounded up to 16]
};

}  // namespace reprise
