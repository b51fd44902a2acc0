// Second moments of queries: how much an error of a key's dims matters to its logits.
#pragma once

#include <cstdint>
#include <vector>

#include "methods/csattention/key_index.h"
#include "methods/key_codes.h"

namespace reprise {

/// With M the mean of q q^T, the mean squared error of q.k for an error e of k is e M e: the metric
/// in which keys have to be quantised. Sums run over the query heads of a KV head, row by row, so
/// they do not depend on how a prompt is cut into chunks.
class QueryMoments {
 public:
  /// parts: pairs of dims of each (see KeyCodes).
  QueryMoments(const ModelConfig& config, std::vector<std::vector<uint16_t>> parts);

  /// Adds the queries of rows at positions of the window; ones that are not finite are left out.
  void add(const QueryRows& rows, const QueryWindow& window);
  /// Mean of q q^T over all queries so far, scaled to a mean diagonal of 1, plus a small multiple
  /// of the identity. A part without queries gets an empty one.
  PartMetrics metrics(uint32_t layer) const;
  /// Sums of squared lengths that the queries so far have in each part: [n_kv_head parts].
  std::vector<float> energies(uint32_t layer) const;
  /// Rows that are in.
  int32_t rows(uint32_t layer) const { return layers_[layer].rows; }
  void clear(uint32_t layer) { layers_[layer] = {}; }
  /// Forgets layers that have seen tokens from length on.
  void truncate(int32_t length);
  uint64_t bytes() const;

 private:
  struct Layer {
    int32_t end = 0;  // one past the last row that is in
    int32_t rows = 0;
    PartMetrics sums;  // [n_kv_head parts][dims, dims]
  };
  void add_query(const float* q, size_t part, std::vector<float>& sums) const;

  const ModelConfig* config_;
  std::vector<std::vector<uint16_t>> parts_;
  std::vector<Layer> layers_;
};

}  // namespace reprise
