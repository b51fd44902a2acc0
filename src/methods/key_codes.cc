#include "methods/key_codes.h"

#include <algorithm>

#include "kernels/ops.h"
#include "methods/key_list.h"
#include "methods/kmeans.h"

namespace reprise {
namespace {

constexpr size_t kSamplePages = 256;
constexpr int32_t kPieceTokens = 512;  // keys that one task codes

// At most kSamplePages of the pages, evenly spread.
std::vector<kernels::PageSpan> sample(std::span<const kernels::PageSpan> pages) {
  const size_t count = std::min(kSamplePages, pages.size());
  std::vector<kernels::PageSpan> chosen;
  for (size_t i = 0; i < count; ++i) chosen.push_back(pages[i * pages.size() / count]);
  return chosen;
}

}  // namespace

KeyCodes::KeyCodes(const KeyCodesOptions& options, const ModelConfig& config)
    : config_(&config),
      options_(options),
      clusters_(size_t{1} << options.bits),
      layers_(config.n_layer) {
  const uint32_t pairs = config.head_dim / 2, parts = std::min(options.parts, pairs);
  for (uint32_t part = 0; part < parts; ++part) {
    auto& own = parts_.emplace_back();
    for (uint32_t pair = part * pairs / parts; pair < (part + 1) * pairs / parts; ++pair) {
      own.push_back(static_cast<uint16_t>(pair));
    }
  }
}

void KeyCodes::train(const QueryRows& rows, int32_t begin, int32_t end) {
  Layer& layer = layers_[rows.layer];
  const size_t dim = config_->head_dim;
  layer.heads.resize(config_->n_kv_head);
  for (Head& head : layer.heads) {
    head.centroids.assign(clusters_ * dim, 0.0f);
    head.transposed.resize(clusters_ * dim);
    head.codes.resize(parts_.size());
  }
  rows.pool->run(layer.heads.size() * parts_.size(), [&](size_t task, int) {
    const size_t index = task / parts_.size(), part = task % parts_.size();
    Head& head = layer.heads[index];
    std::vector<kernels::PageSpan> pages;
    list_pages(rows, index, begin, end, pages);
    pages = sample(pages);
    kmeans({&rows.kv->pool().layout(), pages, parts_[part]},
           {clusters_, options_.iterations, options_.seed}, head.centroids.data());
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
      nearest_centroids({&rows.kv->pool().layout(), pages, parts_[part]}, head.centroids.data(),
                        clusters_, nearest.data());
      for (size_t i = 0; i < nearest.size(); ++i) {
        const kernels::PageSpan& page = pages[i / kPageTokens];
        if ((page.slots >> i % kPageTokens & 1) == 0) continue;
        const auto key = static_cast<size_t>(page.index) + i % kPageTokens;
        head.codes[part][key] = static_cast<uint8_t>(nearest[i]);
      }
    }
  });
  layer.coded = end;
}

void KeyCodes::logits(uint32_t layer, size_t kv_head, const float* q, int32_t begin, int32_t end,
                      float* logits, size_t stride) const {
  const Head& head = layers_[layer].heads[kv_head];
  const size_t group = config_->n_head / config_->n_kv_head, dim = config_->head_dim;
  const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
  std::vector<float> table(clusters_);
  for (size_t row = 0; row < group; ++row) {
    float* out = logits + row * stride;
    for (size_t part = 0; part < parts_.size(); ++part) {
      std::fill(table.begin(), table.end(), 0.0f);
      for (const uint16_t pair : parts_[part]) {
        for (size_t d = 2 * size_t{pair}; d < 2 * size_t{pair} + 2; ++d) {
          kernels::add_scaled(table.data(), &head.transposed[d * clusters_], q[row * dim + d],
                              clusters_);
        }
      }
      const uint8_t* codes = head.codes[part].data() + first;
      for (size_t i = 0; i < count; ++i) out[i] = (part > 0 ? out[i] : 0.0f) + table[codes[i]];
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
    for (const Head& head : layer.heads) {
      bytes += (head.centroids.capacity() + head.transposed.capacity()) * sizeof(float);
      for (const auto& codes : head.codes) bytes += codes.capacity();
    }
  }
  return bytes;
}

}  // namespace reprise
