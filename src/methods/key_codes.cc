#include "methods/key_codes.h"

#include <algorithm>

#include "kernels/ops.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

constexpr size_t kSamplePages = 256;
constexpr size_t kByteValues = 256;
constexpr int32_t kPieceTokens = 512;  // keys that one task codes

// At most kSamplePages of the pages, evenly spread.
std::vector<kernels::PageSpan> sample(std::span<const kernels::PageSpan> pages) {
  const size_t count = std::min(kSamplePages, pages.size());
  std::vector<kernels::PageSpan> chosen;
  for (size_t i = 0; i < count; ++i) chosen.push_back(pages[i * pages.size() / count]);
  return chosen;
}

}  // namespace

std::vector<std::vector<uint16_t>> split_pairs(uint32_t head_dim, uint32_t parts) {
  const uint32_t pairs = head_dim / 2, count = std::min(parts, pairs);
  std::vector<std::vector<uint16_t>> split(count);
  for (uint32_t part = 0; part < count; ++part) {
    for (uint32_t pair = part * pairs / count; pair < (part + 1) * pairs / count; ++pair) {
      split[part].push_back(static_cast<uint16_t>(pair));
    }
  }
  return split;
}

KeyCodes::KeyCodes(const KeyCodesOptions& options, const ModelConfig& config)
    : config_(&config),
      options_(options),
      clusters_(size_t{1} << options.bits),
      per_byte_(options.bits <= 4 ? 2 : 1),
      parts_(split_pairs(config.head_dim, options.parts)),
      layers_(config.n_layer) {}

KeyPoints KeyCodes::points(const QueryRows& rows, std::span<const kernels::PageSpan> pages,
                           size_t kv_head, size_t part) const {
  KeyPoints points = {&rows.kv->pool().layout(), pages, parts_[part]};
  const PartMetrics& metrics = layers_[rows.layer].metrics;
  if (!metrics.empty()) points.metric = metrics[kv_head * parts_.size() + part];
  return points;
}

void KeyCodes::train(const QueryRows& rows, int32_t begin, int32_t end, PartMetrics metrics) {
  Layer& layer = layers_[rows.layer];
  layer.metrics = std::move(metrics);
  const size_t dim = config_->head_dim;
  layer.heads.resize(config_->n_kv_head);
  for (Head& head : layer.heads) {
    head.centroids.assign(clusters_ * dim, 0.0f);
    head.transposed.resize(clusters_ * dim);
    head.codes.resize(key_bytes());
  }
  rows.pool->run(layer.heads.size() * parts_.size(), [&](size_t task, int) {
    const size_t index = task / parts_.size(), part = task % parts_.size();
    Head& head = layer.heads[index];
    std::vector<kernels::PageSpan> pages;
    list_pages(rows, index, begin, end, pages);
    pages = sample(pages);
    kmeans(points(rows, pages, index, part), {clusters_, options_.iterations, options_.seed},
           head.centroids.data());
    for (const uint16_t pair : parts_[part]) {
      for (size_t i = 0; i < 2 * clusters_; ++i) {
        const size_t d = 2 * size_t{pair} + i / clusters_, cluster = i % clusters_;
        head.transposed[d * clusters_ + cluster] = head.centroids[cluster * dim + d];
      }
    }
  });
  layer.trained_end = end;
  layer.coded = 0;
}

void KeyCodes::encode(const QueryRows& rows, int32_t end) {
  Layer& layer = layers_[rows.layer];
  const int32_t first = layer.coded;
  if (first >= end) return;
  for (Head& head : layer.heads) {
    for (auto& codes : head.codes) codes.resize(static_cast<size_t>(end));
  }
  const int32_t first_piece = first / kPieceTokens;
  const auto pieces = static_cast<size_t>((end - 1) / kPieceTokens + 1 - first_piece);
  rows.pool->run(layer.heads.size() * pieces, [&](size_t task, int) {
    const size_t index = task / pieces;
    const int32_t piece = first_piece + static_cast<int32_t>(task % pieces);
    const int32_t begin = std::max(first, piece * kPieceTokens);
    std::vector<kernels::PageSpan> pages;
    list_pages(rows, index, begin, std::min(end, (piece + 1) * kPieceTokens), pages);
    std::vector<int32_t> nearest(pages.size() * kPageTokens);
    Head& head = layer.heads[index];
    for (size_t part = 0; part < parts_.size(); ++part) {
      nearest_centroids(points(rows, pages, index, part), head.centroids.data(), clusters_,
                        nearest.data());
      for (size_t i = 0; i < nearest.size(); ++i) {
        const kernels::PageSpan& page = pages[i / kPageTokens];
        if ((page.slots >> i % kPageTokens & 1) == 0) continue;
        const auto key = static_cast<size_t>(page.index) + i % kPageTokens;
        uint8_t& byte = head.codes[part / per_byte_][key];
        const unsigned shift = 4 * (part % per_byte_),
                       kept = part % per_byte_ > 0 ? byte & 15u : 0u;
        byte = static_cast<uint8_t>(kept | static_cast<unsigned>(nearest[i]) << shift);
      }
    }
  });
  layer.coded = end;
}

// Queries are looked up kLanes at a time, whose entries lie side by side.
void KeyCodes::logits(uint32_t layer, size_t kv_head, const float* q, int32_t begin, int32_t end,
                      float* logits, size_t stride) const {
  const Head& head = layers_[layer].heads[kv_head];
  const size_t group = config_->n_head / config_->n_kv_head, dim = config_->head_dim;
  const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
  std::vector<Lanes> table(key_bytes() * kByteValues);
  for (size_t row = 0; row < group; row += kLanes) {
    const size_t lanes = std::min(kLanes, group - row);
    fill_table(head, q + row * dim, lanes, table);
    for (size_t i = 0; i < count; ++i) {
      Lanes sum = table[head.codes[0][first + i]];
      for (size_t byte = 1; byte < head.codes.size(); ++byte) {
        const Lanes& entry = table[byte * kByteValues + head.codes[byte][first + i]];
        for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += entry[lane];
      }
      for (size_t lane = 0; lane < lanes; ++lane) logits[(row + lane) * stride + i] = sum[lane];
    }
  }
}

// table: [key_bytes, kByteValues] products of queries and the centroids that a byte stands for. q:
// [lanes, head_dim]
void KeyCodes::fill_table(const Head& head, const float* q, size_t lanes,
                          std::span<Lanes> table) const {
  std::vector<float> products(std::max<size_t>(clusters_, 16));
  std::fill(table.begin(), table.end(), Lanes{});
  for (size_t part = 0; part < parts_.size(); ++part) {
    Lanes* entries = &table[part / per_byte_ * kByteValues];
    for (size_t lane = 0; lane < lanes; ++lane) {
      std::fill(products.begin(), products.end(), 0.0f);
      for (const uint16_t pair : parts_[part]) {
        for (size_t d = 2 * size_t{pair}; d < 2 * size_t{pair} + 2; ++d) {
          kernels::add_scaled(products.data(), &head.transposed[d * clusters_],
                              q[lane * config_->head_dim + d], clusters_);
        }
      }
      for (size_t value = 0; value < kByteValues; ++value) {
        const size_t c = per_byte_ == 1 ? value : value >> 4 * (part % 2) & 15;
        if (c < clusters_) entries[value][lane] += products[c];
      }
    }
  }
}

void KeyCodes::truncate(int32_t length) {
  for (Layer& layer : layers_) {
    layer.coded = std::min(layer.coded, length);
    if (length < layer.trained_end) layer.trained_end = 0;
  }
}

uint64_t KeyCodes::codebook_bytes() const {
  return size_t{config_->n_kv_head} * clusters_ * config_->head_dim * sizeof(float);
}

uint64_t KeyCodes::bytes() const {
  uint64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const auto& metric : layer.metrics) bytes += metric.capacity() * sizeof(float);
    for (const Head& head : layer.heads) {
      bytes += (head.centroids.capacity() + head.transposed.capacity()) * sizeof(float);
      for (const auto& codes : head.codes) bytes += codes.capacity();
    }
  }
  return bytes;
}

}  // namespace reprise
