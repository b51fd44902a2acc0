#include "methods/csattention/spherical_kmeans.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace reprise {
namespace {

float dot(const float* a, const float* b, size_t n) {
  float sum = 0.0f;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void seed_directions(std::span<const float> points, size_t dims,
                     const SphericalKMeansOptions& options, float* centroids) {
  const size_t count = points.size() / dims;
  std::mt19937_64 random(options.seed);
  std::vector<float> distances(count, std::numeric_limits<float>::infinity());
  size_t chosen = static_cast<size_t>(random() % count);
  for (size_t cluster = 0; cluster < options.clusters; ++cluster) {
    float* centroid = centroids + cluster * dims;
    std::copy_n(&points[chosen * dims], dims, centroid);
    double total = 0.0;
    for (size_t i = 0; i < count; ++i) {
      distances[i] = std::clamp(1.0f - dot(&points[i * dims], centroid, dims), 0.0f, distances[i]);
      total += distances[i];
    }
    double left = static_cast<double>(random() >> 11) * 0x1p-53 * total;
    for (size_t i = 0; i < count; ++i) {
      if (distances[i] <= 0.0f) continue;
      chosen = i;
      if ((left -= distances[i]) < 0.0) break;
    }
  }
}

}  // namespace

size_t nearest_direction(const float* x, const float* centroids, size_t clusters, size_t dims,
                         float* product) {
  size_t best = 0;
  *product = -std::numeric_limits<float>::infinity();
  for (size_t cluster = 0; cluster < clusters; ++cluster) {
    const float value = dot(x, centroids + cluster * dims, dims);
    if (!(value > *product)) continue;
    *product = value;
    best = cluster;
  }
  return best;
}

void spherical_kmeans(std::span<const float> points, size_t dims,
                      const SphericalKMeansOptions& options, float* centroids) {
  const size_t count = points.size() / dims;
  seed_directions(points, dims, options, centroids);
  std::vector<float> sums, closeness(count);
  std::vector<size_t> sizes;
  for (size_t iteration = 0; iteration < options.iterations; ++iteration) {
    sums.assign(options.clusters * dims, 0.0f);
    sizes.assign(options.clusters, 0);
    for (size_t i = 0; i < count; ++i) {
      const float* point = &points[i * dims];
      const size_t own = nearest_direction(point, centroids, options.clusters, dims, &closeness[i]);
      ++sizes[own];
      for (size_t d = 0; d < dims; ++d) sums[own * dims + d] += point[d];
    }
    for (size_t cluster = 0; cluster < options.clusters; ++cluster) {
      float* sum = &sums[cluster * dims];
      if (sizes[cluster] == 0) {
        const auto far = std::min_element(closeness.begin(), closeness.end());
        std::copy_n(&points[static_cast<size_t>(far - closeness.begin()) * dims], dims, sum);
        *far = 1.0f;  // the next one takes another
      }
      const float norm = std::sqrt(dot(sum, sum, dims));
      if (!(norm > 0.0f)) continue;  // points that cancel out: the centroid stays
      for (size_t d = 0; d < dims; ++d) centroids[cluster * dims + d] = sum[d] / norm;
    }
  }
}

}  // namespace reprise
