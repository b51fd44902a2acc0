// Toys for tests of MAC-Attention: queries that repeat, where nothing need be rotated.
#pragma once

#include <map>

#include "methods/selecting.h"

namespace reprise::testing {

/// Starts early enough for short sequences.
inline const std::string kEarlyMac = "mac:min_context=0,window=64,band=32,sink=8,guard=false";

/// Heads of which no dimension is rotated: the two that would be are zero in every key.
inline ToyShape unrotated(uint32_t layers = 1) {
  ToyShape shape{layers, 4, 2, 32, kernels::KvType::kF32};
  shape.rope_dims = 2;
  return shape;
}

inline void zero_rotated(Toy& toy, size_t tokens) {
  const size_t head_dim = toy.config().head_dim;
  for (uint32_t layer = 0; layer < toy.config().n_layer; ++layer) {
    for (size_t token = 0; token < tokens; ++token) {
      for (size_t head = 0; head < toy.config().n_kv_head; ++head) {
        std::fill_n(toy.k(layer, token) + head * head_dim, 2, 0.0f);
      }
    }
  }
}

/// Gives a token the queries of another one, for all heads or some.
inline void repeat_query(Toy& toy, size_t token, size_t of, size_t first_head = 0,
                         size_t heads = 4) {
  const size_t head_dim = toy.config().head_dim;
  for (uint32_t layer = 0; layer < toy.config().n_layer; ++layer) {
    std::copy_n(toy.q(layer, of) + first_head * head_dim, heads * head_dim,
                toy.q(layer, token) + first_head * head_dim);
  }
}

/// Every token from first on has the query of the one that stands distance before it.
inline void repeat_queries(Toy& toy, size_t first, size_t last, size_t distance) {
  for (size_t token = first; token < last; ++token) {
    repeat_query(toy, token, token - distance, 0, toy.config().n_head);
  }
}

inline double largest_difference(const Outputs& a, const Outputs& b, size_t first = 0) {
  double largest = 0.0;
  for (size_t i = first; i < a.size(); ++i) {
    for (size_t d = 0; d < a[i].size(); ++d) {
      largest = std::max(largest, std::abs(double{a[i][d]} - b[i][d]));
    }
  }
  return largest;
}

inline std::map<std::string, double> stats_of(const Policy& policy) {
  const auto stats = policy.stats();
  return {stats.begin(), stats.end()};
}

}  // namespace reprise::testing
