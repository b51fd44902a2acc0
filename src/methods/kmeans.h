// k-means over keys in place: points are slots of K pages, in a subset of their dims.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace reprise {

/// Keys of some pages, reduced to some pairs of dims.
struct KeyPoints {
  const kernels::KvLayout* layout = nullptr;
  std::span<const kernels::PageSpan> pages;  // the slots that are set are points
  std::span<const uint16_t> pairs;           // ascending
  /// [dims, dims], dims = 2 pairs: M, symmetric and positive, of the squared distance x M x; empty:
  /// Euclidean.
  std::span<const float> metric = {};
};

struct KMeansOptions {
  size_t clusters = 64;
  size_t iterations = 10;
  uint64_t seed = 1;
};

/// Lloyd's algorithm from k-means++ seeds (Arthur & Vassilvitskii 2007). centroids: [clusters,
/// head_dim], of which only the dims of points.pairs are written. A cluster that loses all points
/// stays where it was. Deterministic; uses no threads. There must be a point.
void kmeans(const KeyPoints& points, const KMeansOptions& options, float* centroids);

/// nearest: [16 pages] index of the centroid (see kmeans) at the smallest distance, the
/// lowest among equals; unspecified for slots that are not set.
void nearest_centroids(const KeyPoints& points, const float* centroids, size_t clusters,
                       int32_t* nearest);

/// The same in two steps, of which the first serves many. directions: [clusters, dim] M c, written
/// like centroids; halves: [clusters] c M c / 2. Of points, pairs and metric count.
void weigh_centroids(const KeyPoints& points, const float* centroids, size_t clusters, size_t dim,
                     float* directions, float* halves);
void nearest_weighed(const KeyPoints& points, const float* directions, const float* halves,
                     size_t clusters, int32_t* nearest);

}  // namespace reprise
