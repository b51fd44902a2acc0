// A bounded number of queries of a prompt, evenly spread over it, and parts of them as directions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "methods/csattention/key_index.h"

namespace reprise {

class QuerySamples {
 public:
  explicit QuerySamples(const ModelConfig& config);

  /// Rows that it holds at most.
  static size_t room(const ModelConfig& config);
  /// Whether the i-th of count rows of a window is taken, of which quota are.
  static bool chooses(size_t i, size_t quota, size_t count) {
    return (i + 1) * quota / count > i * quota / count;
  }

  /// Adds what rows contribute: those of a prompt evenly from the window, decoded ones while there
  /// is room. Does not depend on how a prompt is cut into chunks.
  void take(const QueryRows& rows, const QueryWindow& window);
  /// Directions [n, 2 pairs] of the samples of a KV head in some pairs of dims; those without one
  /// are left out.
  std::vector<float> directions(size_t kv_head, std::span<const uint16_t> pairs) const;
  void clear();
  /// Forgets all samples if one is of a token from length on.
  void truncate(int32_t length);
  uint64_t bytes() const { return queries_.capacity() * sizeof(float); }

 private:
  const ModelConfig* config_;
  size_t room_;                 // rows
  int32_t end_ = 0;             // one past the last row that was looked at
  std::vector<float> queries_;  // [rows, n_head, head_dim]
};

/// q[pairs] at unit length, out: [2 pairs]. Returns its length; 0, and nothing written, when it has
/// no direction.
float direction(const float* q, std::span<const uint16_t> pairs, float* out);

}  // namespace reprise
