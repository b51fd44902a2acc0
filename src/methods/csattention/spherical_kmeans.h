// Spherical k-means: clusters of directions.
#pragma once

#include <cstdint>
#include <span>

namespace reprise {

struct SphericalKMeansOptions {
  size_t clusters = 128;
  size_t iterations = 10;
  uint64_t seed = 1;
};

/// Lloyd's algorithm by cosine from k-means++ seeds (Dhillon & Modha 2001). points: [n, dims] of
/// unit length, n > 0. centroids: [clusters, dims], of unit length; with fewer distinct points than
/// clusters some are equal. A cluster that loses all points takes the one furthest from its
/// centroid. Deterministic; uses no threads.
void spherical_kmeans(std::span<const float> points, size_t dims,
                      const SphericalKMeansOptions& options, float* centroids);

/// Index of the row of centroids [clusters, dims] with the largest product with x [dims], the
/// lowest among equals.
size_t nearest_direction(const float* x, const float* centroids, size_t clusters, size_t dims,
                         float* product);

}  // namespace reprise
