// Attention pooled by blocks of one page: what the predictor's history is made of.
#pragma once

#include <cstdint>
#include <span>

#include "attention/policy.h"
#include "methods/attention_predictor/predictor.h"

namespace reprise {

/// Makes rows of scores; query heads of a KV head are averaged.
class BlockScores {
 public:
  BlockScores(BlockPool pool, const ModelConfig& config)
      : config_(&config),
        pool_(pool),
        share_(static_cast<float>(config.n_kv_head) / static_cast<float>(config.n_head)) {}

  /// Of a decode row, from what attention gave for its shares, pooled alike.
  void of_read(const QueryRows& rows, const PageShares& shares, ScoreRow& row) const;
  /// Of the rows from a position on, over every key that they see. Reads keys only, once for all
  /// of them; returns the bytes.
  uint64_t of_all(const QueryRows& rows, int32_t first, std::span<ScoreRow> scores) const;

  BlockPool pool() const { return pool_; }

  static constexpr size_t kRows = 8;  // that are best scored together

 private:
  const ModelConfig* config_;
  BlockPool pool_;
  float share_;  // of a query head in its KV head
};

}  // namespace reprise
