#include "methods/csattention/centroid_lists.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "methods/csattention/centroid_products.h"
#include "methods/csattention/spherical_kmeans.h"
#include "methods/key_codes.h"
#include "methods/top_k.h"

namespace reprise {
namespace {

constexpr float kNoCosine = 2.0f;      // larger than any
constexpr float kMemory = 1.0f / 16;   // weight of the newest cosine in its average
constexpr float kDrift = 3.0f;         // standard deviations below the usual cosine
constexpr float kRidge = 1e-4f;        // of the least squares of two centroids
constexpr int32_t kPieceTokens = 512;  // keys whose scores are computed together
constexpr size_t kEntryBytes = sizeof(uint32_t) + sizeof(F16);
constexpr float kUnlisted = -std::numeric_limits<float>::infinity();

}  // namespace

CentroidLists::CentroidLists(const CentroidListsOptions& options, const ModelConfig& config)
    : config_(&config),
      options_(options),
      parts_(split_pairs(config.head_dim, options.parts)),
      layers_(config.n_layer, Layer(config)) {}

double CentroidLists::key_bytes(const CentroidListsOptions& options, const ModelConfig& config) {
  const size_t lists = split_pairs(config.head_dim, options.parts).size() * options.centroids;
  return static_cast<double>(lists * kEntryBytes) * double{options.share};
}

std::span<const float> CentroidLists::centroid(uint32_t layer, size_t kv_head, size_t part,
                                               size_t index) const {
  const size_t dims = 2 * parts_[part].size();
  return std::span(layers_[layer].parts[kv_head * parts_.size() + part].centroids)
      .subspan(index * dims, dims);
}

void CentroidLists::take_queries(const QueryRows& rows, const QueryWindow& window) {
  layers_[rows.layer].samples.take(rows, window);
}

void CentroidLists::build(const QueryRows& rows, KeyRange keys) {
  Layer& layer = layers_[rows.layer];
  layer.parts.resize(config_->n_kv_head * parts_.size());
  rows.pool->run(layer.parts.size(), [&](size_t task, int) {
    build_part(layer, task, layer.parts[task]);
    if (options_.centred) centre(rows, task, keys, layer.parts[task]);
  });
  layer.cosines.assign(config_->n_head * parts_.size(), kNoCosine);
  layer.samples.clear();
  layer.built_end = keys.end;
  layer.listed = 0;
}

void CentroidLists::build_part(const Layer& layer, size_t task, Part& part) const {
  const auto& pairs = parts_[task % parts_.size()];
  const size_t dims = 2 * pairs.size();
  const auto samples = layer.samples.directions(task / parts_.size(), pairs);
  part.centroids.resize(options_.centroids * dims);
  part.lists.resize(options_.centroids);
  spherical_kmeans(samples, dims, {options_.centroids, options_.iterations, options_.seed},
                   part.centroids.data());
  double sum = 0.0, squares = 0.0;
  const size_t rows = samples.size() / dims;
  const auto count = static_cast<double>(rows);
  for (size_t i = 0; i < samples.size(); i += dims) {
    float cosine = 0.0f;
    nearest_direction(&samples[i], part.centroids.data(), options_.centroids, dims, &cosine);
    sum += cosine;
    squares += double{cosine} * cosine;
  }
  part.usual = static_cast<float>(sum / count);
  part.spread =
      static_cast<float>(std::sqrt(std::max(0.0, squares / count - std::pow(sum / count, 2))));
}

void CentroidLists::centre(const QueryRows& rows, size_t task, KeyRange keys, Part& part) const {
  std::vector<double> sums(options_.centroids);
  CentroidProducts products;
  for (int32_t first = keys.begin; first < keys.end; first += kPieceTokens) {
    const KeyRange piece = {first, std::min(keys.end, first + kPieceTokens)};
    centroid_products(rows, task / parts_.size(), piece, parts_[task % parts_.size()],
                      part.centroids, config_->attention_scale, products);
    for (size_t i = 0; i < sums.size(); ++i) {
      for (int32_t key = piece.begin; key < piece.end; ++key) {
        sums[i] += products.at(i, static_cast<size_t>(key - piece.begin));
      }
    }
  }
  part.means.resize(sums.size());
  std::ranges::transform(sums, part.means.begin(), [&](double sum) {
    return static_cast<float>(sum / (keys.end - keys.begin));
  });
}

void CentroidLists::extend(const QueryRows& rows, int32_t end) {
  Layer& layer = layers_[rows.layer];
  if (layer.listed >= end) return;
  if (layer.listed == 0) {
    const auto length = static_cast<size_t>(std::ceil(options_.share * static_cast<float>(end)));
    for (Part& part : layer.parts) {
      for (ScoreList& list : part.lists) list.reset(length);
    }
  }
  rows.pool->run(layer.parts.size(), [&](size_t task, int) {
    for (int32_t first = layer.listed; first < end; first += kPieceTokens) {
      offer_keys(rows, task, {first, std::min(end, first + kPieceTokens)}, layer.parts[task]);
    }
  });
  layer.listed = end;
}

void CentroidLists::offer_keys(const QueryRows& rows, size_t task, KeyRange keys,
                               Part& part) const {
  const auto& pairs = parts_[task % parts_.size()];
  CentroidProducts products;
  centroid_products(rows, task / parts_.size(), keys, pairs, part.centroids,
                    config_->attention_scale, products);
  for (size_t centroid = 0; centroid < options_.centroids; ++centroid) {
    const float mean = options_.centred ? part.means[centroid] : 0.0f;
    for (int32_t key = keys.begin; key < keys.end; ++key) {
      const float product = products.at(centroid, static_cast<size_t>(key - keys.begin));
      part.lists[centroid].offer(static_cast<uint32_t>(key), product - mean);
    }
  }
}

// q: [dims] of unit length. cosine: the moving average, updated.
CentroidLists::Atoms CentroidLists::atoms(const Part& part, const float* q, size_t dims,
                                          float& cosine) const {
  float best = 0.0f;
  Atoms atoms = {
      {nearest_direction(q, part.centroids.data(), options_.centroids, dims, &best)}, {1.0f}, 1};
  cosine = cosine == kNoCosine ? part.usual : cosine;
  cosine += kMemory * (best - cosine);
  if (!options_.backoff || cosine >= part.usual - kDrift * part.spread) return atoms;
  const float* first = &part.centroids[atoms.centroid[0] * dims];
  float second_best = -kNoCosine;
  for (size_t i = 0; i < options_.centroids; ++i) {
    const float product = std::inner_product(q, q + dims, &part.centroids[i * dims], 0.0f);
    if (i == atoms.centroid[0] || product <= second_best) continue;
    second_best = product;
    atoms.centroid[1] = i;
    atoms.count = 2;
  }
  if (atoms.count == 1) return atoms;
  const float between =
      std::inner_product(first, first + dims, &part.centroids[atoms.centroid[1] * dims], 0.0f);
  const float diagonal = 1.0f + kRidge, determinant = diagonal * diagonal - between * between;
  atoms.weight[0] = (diagonal * best - between * second_best) / determinant;
  atoms.weight[1] = (diagonal * second_best - between * best) / determinant;
  return atoms;
}

// scores: [candidates] sums of list entries, kUnlisted where there is none; where lists count for
// keys that they lack, less what these sum up to. Returns the bytes read.
uint64_t CentroidLists::score(Layer& layer, const float* q, size_t head, KeyRange candidates,
                              std::vector<float>& scores, size_t& backoffs) const {
  const size_t kv_head = head / (config_->n_head / config_->n_kv_head);
  scores.assign(static_cast<size_t>(candidates.end - candidates.begin),
                options_.absent_mean ? 0.0f : kUnlisted);
  std::vector<float> unit(config_->head_dim);
  uint64_t entries = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const float norm = direction(q, parts_[i], unit.data());
    if (norm == 0.0f) continue;
    const Part& part = layer.parts[kv_head * parts_.size() + i];
    const Atoms found =
        atoms(part, unit.data(), 2 * parts_[i].size(), layer.cosines[head * parts_.size() + i]);
    backoffs += found.count > 1;
    for (size_t atom = 0; atom < found.count; ++atom) {
      const ScoreList& list = part.lists[found.centroid[atom]];
      const float weight = found.weight[atom] * (options_.norms ? norm : 1.0f);
      const float absent = options_.absent_mean ? list.mean_of_others() : 0.0f;
      entries += list.keys().size();
      for (size_t entry = 0; entry < list.keys().size(); ++entry) {
        const auto key = static_cast<int32_t>(list.keys()[entry]);
        if (key < candidates.begin || key >= candidates.end) continue;
        float& sum = scores[static_cast<size_t>(key - candidates.begin)];
        sum = (sum == kUnlisted ? 0.0f : sum) + weight * (list.score(entry) - absent);
      }
    }
  }
  return entries * kEntryBytes;
}

uint64_t CentroidLists::find(const QueryRows& rows, KeyRange candidates, size_t k,
                             KeyPicks& picks) {
  Layer& layer = layers_[rows.layer];
  picks.resize(config_->n_head);
  std::vector<uint64_t> bytes(config_->n_head);
  std::vector<size_t> backoffs(config_->n_head);
  rows.pool->run(config_->n_head, [&](size_t head, int) {
    std::vector<float> scores;
    bytes[head] = score(layer, rows.q_rotated + head * config_->head_dim, head, candidates, scores,
                        backoffs[head]);
    top_k(scores, k, picks[head]);
    std::erase_if(picks[head],
                  [&](int32_t key) { return scores[static_cast<size_t>(key)] == kUnlisted; });
  });
  lookups_ += config_->n_head * parts_.size();
  backoffs_ += std::accumulate(backoffs.begin(), backoffs.end(), uint64_t{0});
  return std::accumulate(
      bytes.begin(), bytes.end(),
      uint64_t{config_->n_kv_head} * options_.centroids * config_->head_dim * sizeof(float));
}

void CentroidLists::save(StateWriter& out) const {
  for (const Layer& layer : layers_) {
    out.value(layer.built_end);
    if (layer.built_end == 0) continue;
    out.value(layer.listed);
    out.array(layer.cosines.data(), layer.cosines.size());
    for (const Part& part : layer.parts) {
      out.array(part.centroids.data(), part.centroids.size());
      out.array(part.means.data(), part.means.size());
      out.value(part.usual);
      out.value(part.spread);
      for (const ScoreList& list : part.lists) list.save(out);
    }
  }
}

void CentroidLists::load(StateReader& in, int32_t length) {
  for (Layer& layer : layers_) {
    layer = Layer(*config_);
    const auto built_end = in.value<int32_t>();
    if (!in.ok() || built_end == 0) continue;
    layer.listed = in.value<int32_t>();
    in.require(built_end > 0 && built_end <= length && layer.listed >= 0 && layer.listed <= length);
    in.array(layer.cosines, config_->n_head * parts_.size());
    layer.parts.resize(config_->n_kv_head * parts_.size());
    for (size_t i = 0; i < layer.parts.size() && in.ok(); ++i) {
      Part& part = layer.parts[i];
      in.array(part.centroids, options_.centroids * 2 * parts_[i % parts_.size()].size());
      in.array(part.means, options_.centred ? options_.centroids : 0);
      part.usual = in.value<float>();
      part.spread = in.value<float>();
      part.lists.resize(options_.centroids);
      for (ScoreList& list : part.lists) list.load(in, static_cast<uint32_t>(layer.listed));
    }
    if (in.ok()) layer.built_end = built_end;
  }
}

// A list forgets what newer keys pushed out, so it cannot be cut back.
void CentroidLists::truncate(int32_t length) {
  for (Layer& layer : layers_) {
    layer.samples.truncate(length);
    std::fill(layer.cosines.begin(), layer.cosines.end(), kNoCosine);  // of an answer that is gone
    if (layer.built_end > length || layer.listed > length) layer.built_end = layer.listed = 0;
  }
}

uint64_t CentroidLists::bytes() const {
  uint64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += layer.samples.bytes();
    for (const Part& part : layer.parts) {
      bytes += (part.centroids.capacity() + part.means.capacity()) * sizeof(float);
      for (const ScoreList& list : part.lists) bytes += list.bytes();
    }
  }
  return bytes;
}

PolicyStats CentroidLists::stats() const {
  if (lookups_ == 0) return {};
  return {{"backoff", static_cast<double>(backoffs_) / static_cast<double>(lookups_)}};
}

}  // namespace reprise
