// Products of centroids of a part of the dims with keys in place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/policy.h"

namespace reprise {

/// Rows of products of centroids with keys.
struct CentroidProducts {
  std::vector<float> values;  // [centroids, stride]
  size_t stride = 0;          // a multiple of 16
  size_t first = 0;           // slot of the first key

  float at(size_t centroid, size_t key) const { return values[centroid * stride + first + key]; }
};

/// scale c.k of every centroid and every key of a KV head. centroids: [n, 2 pairs]. Uses no
/// threads.
void centroid_products(const QueryRows& rows, size_t kv_head, KeyRange keys,
                       std::span<const uint16_t> pairs, std::span<const float> centroids,
                       float scale, CentroidProducts& products);

}  // namespace reprise
