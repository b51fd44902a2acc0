#include "methods/key_codes.h"

#include <algorithm>

#include "base/grow.h"
#include "kernels/ops.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

constexpr size_t kByteValues = 256;
constexpr float kLargestEntry = 127.0f;  // so that two fit in a byte
constexpr int32_t kPieceTokens = 512;    // keys that one task codes

// At most so many of the pages, evenly spread.
std::vector<kernels::PageSpan> sample(std::span<const kernels::PageSpan> pages, size_t most) {
  const size_t count = std::min(most, pages.size());
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

KeyPoints KeyCodes::points(const kernels::KvLayout* layout,
                           std::span<const kernels::PageSpan> pages, const Layer& layer,
                           size_t kv_head, size_t part) const {
  KeyPoints points = {layout, pages, parts_[part]};
  if (!layer.metrics.empty()) points.metric = layer.metrics[kv_head * parts_.size() + part];
  return points;
}

void KeyCodes::train(const QueryRows& rows, int32_t begin, int32_t end, PartMetrics metrics) {
  Layer& layer = layers_[rows.layer];
  layer.metrics = std::move(metrics);
  const size_t dim = config_->head_dim;
  layer.heads.resize(config_->n_kv_head);
  for (Head& head : layer.heads) {
    head.centroids.assign(clusters_ * dim, 0.0f);
    head.codes.resize(key_bytes());
    make_room(head);
  }
  rows.pool->run(layer.heads.size() * parts_.size(), [&](size_t task, int) {
    const size_t index = task / parts_.size(), part = task % parts_.size();
    Head& head = layer.heads[index];
    std::vector<kernels::PageSpan> pages;
    list_pages(rows, index, begin, end, pages);
    pages = sample(pages, options_.sample_pages);
    const KeyPoints keys = points(&rows.kv->pool().layout(), pages, layer, index, part);
    kmeans(keys, {clusters_, options_.iterations, options_.seed}, head.centroids.data());
    prepare(head, keys, part);
  });
  layer.trained_end = end;
  layer.coded = 0;
}

void KeyCodes::make_room(Head& head) const {
  head.transposed.resize(head.centroids.size());
  head.directions.resize(head.centroids.size());
  head.halves.resize(parts_.size() * clusters_);
}

void KeyCodes::prepare(Head& head, const KeyPoints& points, size_t part) const {
  const size_t dim = config_->head_dim;
  for (const uint16_t pair : parts_[part]) {
    for (size_t i = 0; i < 2 * clusters_; ++i) {
      const size_t d = 2 * size_t{pair} + i / clusters_, cluster = i % clusters_;
      head.transposed[d * clusters_ + cluster] = head.centroids[cluster * dim + d];
    }
  }
  weigh_centroids(points, head.centroids.data(), clusters_, dim, head.directions.data(),
                  &head.halves[part * clusters_]);
}

void KeyCodes::encode(const QueryRows& rows, int32_t end) {
  Layer& layer = layers_[rows.layer];
  const int32_t first = layer.coded;
  if (first >= end) return;
  for (Head& head : layer.heads) {
    for (auto& codes : head.codes) grow(codes, static_cast<size_t>(end));
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
      nearest_weighed(points(&rows.kv->pool().layout(), pages, layer, index, part),
                      head.directions.data(), &head.halves[part * clusters_], clusters_,
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

void KeyCodes::part_products(const Head& head, const float* q, size_t part, float* products) const {
  std::fill_n(products, clusters_, 0.0f);
  for (const uint16_t pair : parts_[part]) {
    for (size_t d = 2 * size_t{pair}; d < 2 * size_t{pair} + 2; ++d) {
      kernels::add_scaled(products, &head.transposed[d * clusters_], q[d], clusters_);
    }
  }
}

// Every part is shifted to begin at 0; one step for all keeps sums comparable.
KeyCodes::ByteTables KeyCodes::byte_tables(const Head& head, const float* q) const {
  const size_t group = config_->n_head / config_->n_kv_head, row_entries = 2 * key_bytes() * 16;
  ByteTables tables = {std::vector<uint8_t>(group * row_entries), std::vector<float>(group),
                       std::vector<float>(group)};
  std::vector<float> products(parts_.size() * clusters_), lows(parts_.size());
  for (size_t row = 0; row < group; ++row) {
    float span = 0.0f;
    for (size_t part = 0; part < parts_.size(); ++part) {
      float* values = &products[part * clusters_];
      part_products(head, q + row * config_->head_dim, part, values);
      const auto [low, high] = std::minmax_element(values, values + clusters_);
      lows[part] = *low;
      tables.low[row] += *low;
      span = std::max(span, *high - *low);
    }
    const float step = span > 0.0f ? span / kLargestEntry : 1.0f, levels = 1.0f / step;
    tables.step[row] = step;
    for (size_t part = 0; part < parts_.size(); ++part) {
      const float* values = &products[part * clusters_];
      uint8_t* entries = &tables.entries[row * row_entries + part * 16];
      for (size_t cluster = 0; cluster < clusters_; ++cluster) {
        const float level = (values[cluster] - lows[part]) * levels + 0.5f;
        entries[cluster] =
            static_cast<uint8_t>(level > 0.0f ? std::min(level, kLargestEntry) : 0.0f);
      }
    }
  }
  return tables;
}

void KeyCodes::packed_logits(void (*kernel)(const kernels::CodeSumsArgs&), const Head& head,
                             const float* q, size_t begin, size_t keys, size_t unit, float* logits,
                             size_t stride) const {
  const ByteTables tables = byte_tables(head, q);
  std::vector<const uint8_t*> codes;
  for (const auto& plane : head.codes) codes.push_back(plane.data() + begin);
  const size_t count = keys / unit, group = tables.low.size();
  std::vector<uint16_t> sums(group * count);
  kernel({codes.size(), codes.data(), keys, group, tables.entries.data(), sums.data(), count});
  for (size_t row = 0; row < group; ++row) {
    for (size_t i = 0; i < count; ++i) {
      logits[row * stride + i] =
          tables.low[row] + tables.step[row] * static_cast<float>(sums[row * count + i]);
    }
  }
}

void KeyCodes::page_tops(uint32_t layer, size_t kv_head, const float* q, int32_t begin, int32_t end,
                         float* tops, size_t stride) const {
  packed_logits(kernels::code_page_tops, layers_[layer].heads[kv_head], q,
                static_cast<size_t>(begin), static_cast<size_t>(end - begin), kPageTokens, tops,
                stride);
}

// Queries are looked up kLanes at a time, whose entries lie side by side.
void KeyCodes::logits(uint32_t layer, size_t kv_head, const float* q, int32_t begin, int32_t end,
                      float* logits, size_t stride) const {
  const Head& head = layers_[layer].heads[kv_head];
  const size_t group = config_->n_head / config_->n_kv_head, dim = config_->head_dim;
  const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
  if (packed()) return packed_logits(kernels::code_sums, head, q, first, count, 1, logits, stride);
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

// table: [key_bytes, kByteValues] products of queries and the centroids that a byte names. q:
// [lanes, head_dim]. Codes that are not packed.
void KeyCodes::fill_table(const Head& head, const float* q, size_t lanes,
                          std::span<Lanes> table) const {
  std::vector<float> products(clusters_);
  for (size_t part = 0; part < parts_.size(); ++part) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      part_products(head, q + lane * config_->head_dim, part, products.data());
      for (size_t value = 0; value < clusters_; ++value) {
        table[part * kByteValues + value][lane] = products[value];
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

void KeyCodes::save(StateWriter& out) const {
  for (const Layer& layer : layers_) {
    out.value(layer.trained_end);
    if (layer.trained_end == 0) continue;
    out.value(layer.coded);
    out.value(static_cast<uint32_t>(layer.metrics.size()));
    for (const std::vector<float>& metric : layer.metrics) {
      out.value(static_cast<uint32_t>(metric.size()));
      out.array(metric.data(), metric.size());
    }
    for (const Head& head : layer.heads) {
      out.array(head.centroids.data(), head.centroids.size());
      for (const auto& codes : head.codes) {
        out.array(codes.data(), static_cast<size_t>(layer.coded));
      }
    }
  }
}

void KeyCodes::load(StateReader& in, int32_t length) {
  for (Layer& layer : layers_) {
    layer = {};
    const auto trained_end = in.value<int32_t>();
    if (!in.ok() || trained_end == 0) continue;
    layer.coded = in.value<int32_t>();
    in.require(trained_end > 0 && trained_end <= length && layer.coded >= 0 &&
               layer.coded <= length);
    const size_t metrics = in.value<uint32_t>(), all = config_->n_kv_head * parts_.size();
    in.require(metrics == 0 || metrics == all);
    layer.metrics.resize(in.ok() ? metrics : 0);
    for (size_t i = 0; i < layer.metrics.size(); ++i) {
      const size_t dims = 2 * parts_[i % parts_.size()].size(), size = in.value<uint32_t>();
      in.require(size == 0 || size == dims * dims);
      in.array(layer.metrics[i], size);
    }
    if (!in.ok()) return;
    layer.heads.resize(config_->n_kv_head);
    for (Head& head : layer.heads) {
      in.array(head.centroids, clusters_ * config_->head_dim);
      head.codes.resize(key_bytes());
      for (auto& codes : head.codes) in.array(codes, static_cast<size_t>(layer.coded));
      if (!in.ok()) return;
      make_room(head);
      for (size_t part = 0; part < parts_.size(); ++part) {
        const auto index = static_cast<size_t>(&head - layer.heads.data());
        prepare(head, points(nullptr, {}, layer, index, part), part);
      }
    }
    layer.trained_end = trained_end;
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
      bytes += (head.centroids.capacity() + head.transposed.capacity() +
                head.directions.capacity() + head.halves.capacity()) *
               sizeof(float);
      for (const auto& codes : head.codes) bytes += codes.capacity();
    }
  }
  return bytes;
}

}  // namespace reprise
