#include "methods/kmeans.h"

#include <algorithm>
#include <limits>
#include <random>

#include "kernels/key_logits.h"

namespace reprise {
namespace {

using kernels::kPageTokens;

constexpr size_t kPiecePages = 16;  // whose products with all centroids stay in the cache
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The points as rows: where each lies, and its dims.
struct Rows {
  std::vector<size_t> places;  // slot in pages order
  std::vector<float> values;   // [points, dims]
  size_t dims = 0;
};

Rows read_rows(const KeyPoints& points) {
  Rows rows;
  rows.dims = 2 * points.pairs.size();
  std::vector<float> key(points.layout->head_dim);
  for (size_t i = 0; i < points.pages.size() * kPageTokens; ++i) {
    const kernels::PageSpan& page = points.pages[i / kPageTokens];
    if ((page.slots >> i % kPageTokens & 1) == 0) continue;
    kernels::load_k(*points.layout, page.k, i % kPageTokens, key.data());
    rows.places.push_back(i);
    for (const uint16_t pair : points.pairs) {
      rows.values.insert(rows.values.end(), {key[2 * pair], key[2 * pair + 1]});
    }
  }
  return rows;
}

float squared_norm(const float* x, size_t n) {
  float sum = 0.0f;
  for (size_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

float squared_norm(const float* centroid, std::span<const uint16_t> pairs) {
  float sum = 0.0f;
  for (const uint16_t pair : pairs) sum += squared_norm(centroid + 2 * pair, 2);
  return sum;
}

// out [rows, 16 pages] = centroid . key
void products(const KeyPoints& points, std::span<const kernels::PageSpan> pages,
              const float* centroids, size_t rows, float* out) {
  kernels::KeyLogitsArgs args;
  args.layout = points.layout;
  args.rows = rows;
  args.q = centroids;
  args.q_stride = points.layout->head_dim;
  args.pages = pages;
  args.pairs = points.pairs;
  args.out = out;
  args.out_stride = pages.size() * kPageTokens;
  kernels::key_logits(args);
}

void set_centroid(const KeyPoints& points, const float* values, float* centroid) {
  for (const uint16_t pair : points.pairs) {
    centroid[2 * pair] = *values++;
    centroid[2 * pair + 1] = *values++;
  }
}

// Index of a point drawn with a probability proportional to its weight; the last one with a weight
// when rounding runs past the end.
size_t draw(std::span<const float> weights, double total, std::mt19937_64& random) {
  double left = static_cast<double>(random() >> 11) * 0x1p-53 * total;
  size_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0.0f) continue;
    last = i;
    if ((left -= weights[i]) < 0.0) break;
  }
  return last;
}

void seed_centroids(const KeyPoints& points, const Rows& rows, const KMeansOptions& options,
                    float* centroids) {
  const size_t count = rows.places.size(), dim = points.layout->head_dim;
  std::mt19937_64 random(options.seed);
  std::vector<float> dots(points.pages.size() * kPageTokens), distances(count, kInfinity);
  size_t chosen = static_cast<size_t>(random() % count);
  for (size_t cluster = 0; cluster < options.clusters; ++cluster) {
    float* centroid = centroids + cluster * dim;
    set_centroid(points, &rows.values[chosen * rows.dims], centroid);
    products(points, points.pages, centroid, 1, dots.data());
    const float norm = squared_norm(centroid, points.pairs);
    double total = 0.0;
    for (size_t i = 0; i < count; ++i) {
      const float own = squared_norm(&rows.values[i * rows.dims], rows.dims);
      distances[i] = std::clamp(own + norm - 2.0f * dots[rows.places[i]], 0.0f, distances[i]);
      total += distances[i];
    }
    distances[chosen] = 0.0f;  // exactly, whatever the products' rounding left
    chosen = draw(distances, total, random);
  }
}

// Moves every centroid to the mean of its points.
void move_centroids(const KeyPoints& points, const Rows& rows, std::span<const int32_t> nearest,
                    size_t clusters, float* centroids) {
  std::vector<float> sums(clusters * rows.dims);
  std::vector<size_t> sizes(clusters);
  for (size_t i = 0; i < rows.places.size(); ++i) {
    const auto cluster = static_cast<size_t>(nearest[rows.places[i]]);
    ++sizes[cluster];
    for (size_t d = 0; d < rows.dims; ++d) {
      sums[cluster * rows.dims + d] += rows.values[i * rows.dims + d];
    }
  }
  for (size_t cluster = 0; cluster < clusters; ++cluster) {
    if (sizes[cluster] == 0) continue;
    float* sum = &sums[cluster * rows.dims];
    for (size_t d = 0; d < rows.dims; ++d) sum[d] /= static_cast<float>(sizes[cluster]);
    set_centroid(points, sum, centroids + cluster * points.layout->head_dim);
  }
}

}  // namespace

void kmeans(const KeyPoints& points, const KMeansOptions& options, float* centroids) {
  const Rows rows = read_rows(points);
  seed_centroids(points, rows, options, centroids);
  std::vector<int32_t> nearest(points.pages.size() * kPageTokens);
  for (size_t i = 0; i < options.iterations; ++i) {
    nearest_centroids(points, centroids, options.clusters, nearest.data());
    move_centroids(points, rows, nearest, options.clusters, centroids);
  }
}

// The nearest centroid has the largest c.x - |c|^2 / 2: |x|^2 is common to all.
void nearest_centroids(const KeyPoints& points, const float* centroids, size_t clusters,
                       int32_t* nearest) {
  const size_t piece = std::min(kPiecePages, points.pages.size());
  std::vector<float> dots(clusters * piece * kPageTokens), best(piece * kPageTokens);
  for (size_t first = 0; first < points.pages.size(); first += piece) {
    const auto pages = points.pages.subspan(first, std::min(piece, points.pages.size() - first));
    const size_t count = pages.size() * kPageTokens;
    products(points, pages, centroids, clusters, dots.data());
    int32_t* found = nearest + first * kPageTokens;
    std::fill_n(best.begin(), count, -kInfinity);
    std::fill_n(found, count, 0);
    for (size_t cluster = 0; cluster < clusters; ++cluster) {
      const float half =
          0.5f * squared_norm(centroids + cluster * points.layout->head_dim, points.pairs);
      const float* dot = &dots[cluster * count];
      for (size_t i = 0; i < count; ++i) {
        const float closeness = dot[i] - half;
        found[i] = closeness > best[i] ? static_cast<int32_t>(cluster) : found[i];
        best[i] = closeness > best[i] ? closeness : best[i];
      }
    }
  }
}

}  // namespace reprise
