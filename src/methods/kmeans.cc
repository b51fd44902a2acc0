#include "methods/kmeans.h"

#include <algorithm>
#include <limits>
#include <random>

#include "kernels/key_logits.h"

namespace reprise {
namespace {

using kernels::kPageTokens;

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

// x M x of the dims of a point.
float norm_of(const KeyPoints& points, const float* x) {
  const size_t dims = 2 * points.pairs.size();
  float norm = 0.0f;
  for (size_t i = 0; i < dims; ++i) {
    float product = points.metric.empty() ? x[i] : 0.0f;
    for (size_t j = 0; j < dims && !points.metric.empty(); ++j) {
      product += points.metric[i * dims + j] * x[j];
    }
    norm += x[i] * product;
  }
  return norm;
}

// out <- M x of a row of head_dim, of which only the dims of points.pairs count; returns x M x.
float weigh(const KeyPoints& points, const float* x, float* out) {
  const size_t dims = 2 * points.pairs.size();
  const auto dim_of = [&](size_t i) { return 2 * size_t{points.pairs[i / 2]} + i % 2; };
  float norm = 0.0f;
  for (size_t i = 0; i < dims; i += 2) {
    const size_t d = dim_of(i);
    out[d] = x[d];
    out[d + 1] = x[d + 1];
    if (!points.metric.empty()) {
      out[d] = out[d + 1] = 0.0f;
      for (size_t j = 0; j < dims; ++j) {
        out[d] += points.metric[i * dims + j] * x[dim_of(j)];
        out[d + 1] += points.metric[(i + 1) * dims + j] * x[dim_of(j)];
      }
    }
    float sum = 0.0f;
    sum += out[d] * x[d];
    sum += out[d + 1] * x[d + 1];
    norm += sum;
  }
  return norm;
}

// out [rows, 16 pages] = direction . key
void products(const KeyPoints& points, std::span<const kernels::PageSpan> pages,
              const float* directions, size_t rows, float* out) {
  kernels::KeyLogitsArgs args;
  args.layout = points.layout;
  args.rows = rows;
  args.q = directions;
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
  std::vector<float> direction(dim), norms(count);
  for (size_t i = 0; i < count; ++i) norms[i] = norm_of(points, &rows.values[i * rows.dims]);
  size_t chosen = static_cast<size_t>(random() % count);
  for (size_t cluster = 0; cluster < options.clusters; ++cluster) {
    float* centroid = centroids + cluster * dim;
    set_centroid(points, &rows.values[chosen * rows.dims], centroid);
    const float norm = weigh(points, centroid, direction.data());
    products(points, points.pages, direction.data(), 1, dots.data());
    double total = 0.0;
    for (size_t i = 0; i < count; ++i) {
      distances[i] = std::clamp(norms[i] + norm - 2.0f * dots[rows.places[i]], 0.0f, distances[i]);
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

void weigh_centroids(const KeyPoints& points, const float* centroids, size_t clusters, size_t dim,
                     float* directions, float* halves) {
  for (size_t cluster = 0; cluster < clusters; ++cluster) {
    halves[cluster] = 0.5f * weigh(points, centroids + cluster * dim, directions + cluster * dim);
  }
}

// The nearest centroid has the largest c M x - c M c / 2: x M x is common to all.
void nearest_weighed(const KeyPoints& points, const float* directions, const float* halves,
                     size_t clusters, int32_t* nearest) {
  kernels::KeyLogitsArgs args;
  args.layout = points.layout;
  args.rows = clusters;
  args.q = directions;
  args.q_stride = points.layout->head_dim;
  args.pages = points.pages;
  args.pairs = points.pairs;
  kernels::best_rows(args, halves, nearest);
}

void nearest_centroids(const KeyPoints& points, const float* centroids, size_t clusters,
                       int32_t* nearest) {
  const size_t dim = points.layout->head_dim;
  std::vector<float> directions(clusters * dim), halves(clusters);
  weigh_centroids(points, centroids, clusters, dim, directions.data(), halves.data());
  nearest_weighed(points, directions.data(), halves.data(), clusters, nearest);
}

}  // namespace reprise
