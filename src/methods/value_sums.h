// Running mean of the values of a sequence, for policies that stand in for what they do not read.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/policy.h"

namespace reprise {

class ValueSums {
 public:
  explicit ValueSums(const ModelConfig& config);

  /// Takes in the values below rows.end() of the rows' layer, in order; the pool computes.
  void update(const QueryRows& rows);
  /// mean: [n_kv_head, head_dim] over all values taken in.
  void mean(uint32_t layer, std::vector<float>& mean) const;
  void truncate(int32_t length);
  uint64_t bytes() const;

 private:
  struct Layer {
    int32_t tokens = 0;
    std::vector<double> sums;  // [n_kv_head, head_dim]
  };
  uint32_t n_kv_head_, head_dim_;
  std::vector<Layer> layers_;
};

}  // namespace reprise
