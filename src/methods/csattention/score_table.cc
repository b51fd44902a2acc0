#include "methods/csattention/score_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/grow.h"
#include "methods/csattention/centroid_products.h"
#include "methods/csattention/spherical_kmeans.h"
#include "methods/key_codes.h"

namespace reprise {
namespace {

constexpr int32_t kPieceTokens = 512;  // keys whose products are computed together
constexpr float kLevels = 15.0f;       // steps of a code
constexpr float kReach = 2.7f;         // standard deviations that codes cover on either side
constexpr float kRidge = 1e-4f;        // of the least squares of two centroids

size_t code_bytes(int32_t keys) { return static_cast<size_t>(keys + 1) / 2; }

// body(keys) for pieces of keys, in order.
template <class Body>
void for_pieces(KeyRange keys, Body body) {
  for (int32_t first = keys.begin; first < keys.end; first += kPieceTokens) {
    body(KeyRange{first, std::min(keys.end, first + kPieceTokens)});
  }
}

}  // namespace

ScoreTable::ScoreTable(const ScoreTableOptions& options, const ModelConfig& config, int32_t unit)
    : LogitIndex(config, unit),
      options_(options),
      parts_(split_pairs(config.head_dim, options.parts)),
      layers_(config.n_layer, Layer(config)) {}

void ScoreTable::take_queries(const QueryRows& rows, const QueryWindow& window) {
  layers_[rows.layer].samples.take(rows, window);
}

void ScoreTable::build(const QueryRows& rows, KeyRange keys) {
  Layer& layer = layers_[rows.layer];
  layer.parts.resize(config().n_kv_head * parts_.size());
  rows.pool->run(layer.parts.size(), [&](size_t task, int) {
    const auto& pairs = parts_[task % parts_.size()];
    Part& part = layer.parts[task];
    part.centroids.resize(options_.centroids * 2 * pairs.size());
    part.codes.resize(options_.centroids);
    const auto samples = layer.samples.directions(task / parts_.size(), pairs);
    spherical_kmeans(samples, 2 * pairs.size(),
                     {options_.centroids, options_.iterations, options_.seed},
                     part.centroids.data());
    fit(rows, task, keys, part);
  });
  layer.samples.clear();
  layer.built_end = keys.end;
  layer.coded = 0;
}

// Codes reach from the mean product to kReach standard deviations on either side.
void ScoreTable::fit(const QueryRows& rows, size_t task, KeyRange keys, Part& part) const {
  std::vector<double> sums(options_.centroids), squares(options_.centroids);
  CentroidProducts products;
  for_pieces(keys, [&](KeyRange piece) {
    centroid_products(rows, task / parts_.size(), piece, parts_[task % parts_.size()],
                      part.centroids, 1.0f, products);
    for (size_t centroid = 0; centroid < options_.centroids; ++centroid) {
      for (size_t key = 0; key < static_cast<size_t>(piece.end - piece.begin); ++key) {
        const double product = products.at(centroid, key);
        sums[centroid] += product;
        squares[centroid] += product * product;
      }
    }
  });
  part.low.resize(options_.centroids);
  part.step.resize(options_.centroids);
  const double count = keys.end - keys.begin;
  for (size_t centroid = 0; centroid < options_.centroids; ++centroid) {
    const double mean = sums[centroid] / count;
    const double deviation = std::sqrt(std::max(0.0, squares[centroid] / count - mean * mean));
    part.low[centroid] = static_cast<float>(mean - double{kReach} * deviation);
    part.step[centroid] = static_cast<float>(2.0 * double{kReach} * deviation / double{kLevels});
  }
}

void ScoreTable::extend(const QueryRows& rows, int32_t end) {
  Layer& layer = layers_[rows.layer];
  if (layer.coded >= end) return;
  rows.pool->run(layer.parts.size(), [&](size_t task, int) {
    for (auto& codes : layer.parts[task].codes) grow(codes, code_bytes(end));
    for_pieces({layer.coded, end},
               [&](KeyRange piece) { code(rows, task, piece, layer.parts[task]); });
  });
  layer.coded = end;
}

void ScoreTable::code(const QueryRows& rows, size_t task, KeyRange keys, Part& part) const {
  CentroidProducts products;
  centroid_products(rows, task / parts_.size(), keys, parts_[task % parts_.size()], part.centroids,
                    1.0f, products);
  for (size_t centroid = 0; centroid < options_.centroids; ++centroid) {
    const float low = part.low[centroid], step = part.step[centroid];
    for (int32_t key = keys.begin; key < keys.end; ++key) {
      const float product = products.at(centroid, static_cast<size_t>(key - keys.begin));
      const float level = step > 0.0f ? std::nearbyint((product - low) / step) : 0.0f;
      const auto value = static_cast<unsigned>(level > 0.0f ? std::min(level, kLevels) : 0.0f);
      uint8_t& pair = part.codes[centroid][static_cast<size_t>(key) / 2];
      pair =
          static_cast<uint8_t>(key % 2 == 0 ? (pair & 0xf0u) | value : (pair & 0x0fu) | value << 4);
    }
  }
}

ScoreTable::Atoms ScoreTable::atoms(const Part& part, std::span<const uint16_t> pairs,
                                    const float* q) const {
  const size_t dims = 2 * pairs.size();
  std::vector<float> rest(dims);
  for (size_t d = 0; d < dims; ++d) rest[d] = q[2 * pairs[d / 2] + d % 2];
  float first = 0.0f, left = 0.0f;
  Atoms atoms = {};
  atoms.centroid[0] =
      nearest_direction(rest.data(), part.centroids.data(), options_.centroids, dims, &first);
  const float* nearest = &part.centroids[atoms.centroid[0] * dims];
  for (size_t d = 0; d < dims; ++d) rest[d] -= first * nearest[d];
  for (size_t i = 0; i < options_.centroids; ++i) {
    const float product =
        std::inner_product(rest.begin(), rest.end(), &part.centroids[i * dims], 0.0f);
    if (i == atoms.centroid[0] || std::fabs(product) <= std::fabs(left)) continue;
    left = product;
    atoms.centroid[1] = i;
  }
  // What is left has no part along the nearest centroid, so the normal equations reduce to this.
  const float* other = &part.centroids[atoms.centroid[1] * dims];
  const float between = std::inner_product(nearest, nearest + dims, other, 0.0f);
  atoms.weight[1] = left == 0.0f ? 0.0f : left / (1.0f - between * between + kRidge);
  atoms.weight[0] = first - between * atoms.weight[1];
  return atoms;
}

uint64_t ScoreTable::estimate(uint32_t layer, size_t kv_head, const float* q, KeyRange keys,
                              float* logits, size_t stride) const {
  const size_t group = config().n_head / config().n_kv_head;
  for (size_t row = 0; row < group; ++row) {
    float* out = logits + row * stride;
    std::fill_n(out, keys.end - keys.begin, 0.0f);
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = layers_[layer].parts[kv_head * parts_.size() + i];
      const Atoms found = atoms(part, parts_[i], q + row * config().head_dim);
      for (size_t atom = 0; atom < 2; ++atom) {
        const size_t centroid = found.centroid[atom];
        std::array<float, 16> values;
        for (size_t code = 0; code < values.size(); ++code) {
          const float product = part.low[centroid] + part.step[centroid] * static_cast<float>(code);
          values[code] = found.weight[atom] * product;
        }
        const uint8_t* codes = part.codes[centroid].data();
        for (int32_t key = keys.begin; key < keys.end; ++key) {
          const unsigned pair = codes[static_cast<size_t>(key) / 2];
          out[key - keys.begin] += values[key % 2 == 0 ? pair & 15u : pair >> 4];
        }
      }
    }
  }
  // At most two rows of each part for every query head.
  const uint64_t lines = std::min<uint64_t>(2 * group, options_.centroids);
  return parts_.size() * lines * static_cast<uint64_t>(keys.end - keys.begin) / 2;
}

void ScoreTable::save(StateWriter& out) const {
  for (const Layer& layer : layers_) {
    out.value(layer.built_end);
    if (layer.built_end == 0) continue;
    out.value(layer.coded);
    for (const Part& part : layer.parts) {
      for (const auto* values : {&part.centroids, &part.low, &part.step}) {
        out.array(values->data(), values->size());
      }
      for (const auto& codes : part.codes) out.array(codes.data(), code_bytes(layer.coded));
    }
  }
}

void ScoreTable::load(StateReader& in, int32_t length) {
  for (Layer& layer : layers_) {
    layer = Layer(config());
    const auto built_end = in.value<int32_t>();
    if (!in.ok() || built_end == 0) continue;
    layer.coded = in.value<int32_t>();
    in.require(built_end > 0 && built_end <= length && layer.coded >= 0 && layer.coded <= length);
    layer.parts.resize(config().n_kv_head * parts_.size());
    for (size_t i = 0; i < layer.parts.size() && in.ok(); ++i) {
      Part& part = layer.parts[i];
      in.array(part.centroids, options_.centroids * 2 * parts_[i % parts_.size()].size());
      in.array(part.low, options_.centroids);
      in.array(part.step, options_.centroids);
      part.codes.resize(options_.centroids);
      for (auto& codes : part.codes) in.array(codes, code_bytes(layer.coded));
    }
    if (in.ok()) layer.built_end = built_end;
  }
}

void ScoreTable::truncate(int32_t length) {
  for (Layer& layer : layers_) {
    layer.samples.truncate(length);
    layer.coded = std::min(layer.coded, length);
    if (layer.built_end > length) layer.built_end = 0;
  }
}

uint64_t ScoreTable::bytes() const {
  uint64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += layer.samples.bytes();
    for (const Part& part : layer.parts) {
      bytes +=
          (part.centroids.capacity() + part.low.capacity() + part.step.capacity()) * sizeof(float);
      for (const auto& codes : part.codes) bytes += codes.capacity();
    }
  }
  return bytes;
}

}  // namespace reprise
