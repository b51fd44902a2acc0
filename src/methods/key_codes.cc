#include "methods/key_codes.h"

#include <algorithm>
#include <numeric>

#include "kernels/ops.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

constexpr size_t kByteValues = 256;
constexpr int32_t kPieceTokens = 512;  // keys that one task codes

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
      columns_(packed() ? kernels::kCodeEntries : clusters_),
      parts_(split_pairs(config.head_dim, options.parts)),
      layers_(config.n_layer) {
  for (const auto& pairs : parts_) first_dims_.push_back(2u * pairs.front());
  first_dims_.push_back(2u * parts_.back().back() + 2u);
}

KeyPoints KeyCodes::points(const kernels::KvLayout* layout,
                           std::span<const kernels::PageSpan> pages, const Layer& layer,
                           size_t kv_head, size_t part) const {
  KeyPoints points = {layout, pages, parts_[part]};
  if (!layer.metrics->empty()) {
    points.metric = (*layer.metrics)[kv_head * parts_.size() + part];
  }
  return points;
}

void KeyCodes::train(const QueryRows& rows, int32_t begin, int32_t end, PartMetrics metrics) {
  Layer& layer = layers_[rows.layer];
  layer.metrics = std::make_shared<PartMetrics>(std::move(metrics));
  layer.heads.assign(config_->n_kv_head, {nullptr, CodeBlocks(key_bytes())});
  for (Head& head : layer.heads) head.book = make_book();
  rows.pool->run(layer.heads.size() * parts_.size(), [&](size_t task, int) {
    const size_t index = task / parts_.size(), part = task % parts_.size();
    Codebook& book = *layer.heads[index].book;
    std::vector<kernels::PageSpan> pages;
    list_pages(rows, index, begin, end, pages);
    pages = sample(pages, options_.sample_pages);
    const KeyPoints keys = points(&rows.kv->pool().layout(), pages, layer, index, part);
    kmeans(keys, {clusters_, options_.iterations, options_.seed}, book.centroids.data());
    prepare(book, keys, part);
  });
  layer.trained_end = end;
  layer.coded = 0;
}

std::shared_ptr<KeyCodes::Codebook> KeyCodes::make_book() const {
  const size_t dim = config_->head_dim;
  return std::make_shared<Codebook>(
      Codebook{std::vector<float>(clusters_ * dim), std::vector<float>(dim * columns_),
               std::vector<float>(clusters_ * dim), std::vector<float>(parts_.size() * clusters_)});
}

void KeyCodes::prepare(Codebook& book, const KeyPoints& points, size_t part) const {
  const size_t dim = config_->head_dim;
  for (const uint16_t pair : parts_[part]) {
    for (size_t i = 0; i < 2 * columns_; ++i) {  // fewer centroids than columns repeat
      const size_t d = 2 * size_t{pair} + i / columns_, column = i % columns_;
      book.transposed[d * columns_ + column] = book.centroids[column % clusters_ * dim + d];
    }
  }
  weigh_centroids(points, book.centroids.data(), clusters_, dim, book.directions.data(),
                  &book.halves[part * clusters_]);
}

void KeyCodes::encode(const QueryRows& rows, int32_t end) {
  constexpr size_t kBlock = kernels::kCodeBlock;
  Layer& layer = layers_[rows.layer];
  const int32_t first = layer.coded;
  if (first >= end) return;
  for (Head& head : layer.heads) {
    head.codes.own(static_cast<size_t>(first), static_cast<size_t>(end));
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
                      head.book->directions.data(), &head.book->halves[part * clusters_], clusters_,
                      nearest.data());
      for (size_t i = 0; i < nearest.size(); ++i) {
        const kernels::PageSpan& page = pages[i / kPageTokens];
        if ((page.slots >> i % kPageTokens & 1) == 0) continue;
        const auto key = static_cast<size_t>(page.index) + i % kPageTokens;
        uint8_t& byte = head.codes.block(key)[part / per_byte_ * kBlock + key % kBlock];
        const unsigned shift = 4 * (part % per_byte_),
                       kept = part % per_byte_ > 0 ? byte & 15u : 0u;
        byte = static_cast<uint8_t>(kept | static_cast<unsigned>(nearest[i]) << shift);
      }
    }
  });
  for (Head& head : layer.heads) head.codes.join(static_cast<size_t>(end));
  layer.coded = end;
}

void KeyCodes::copy_block(uint32_t layer, size_t kv_head, size_t index, uint8_t* codes) const {
  constexpr size_t kBlock = kernels::kCodeBlock;
  const CodeBlocks::Place from = layers_[layer].heads[kv_head].codes.place(index * kBlock);
  for (size_t byte = 0; byte < key_bytes(); ++byte) {
    std::copy_n(from.codes + byte * from.stride, kBlock, codes + byte * kBlock);
  }
}

// Those that tell most, as many as leave no more than the share that may be skipped.
void KeyCodes::choose_planes(std::span<const float> spans, std::vector<uint16_t>& planes) const {
  std::array<float, kernels::kMostPlanes> told{};
  float total = 0.0f;
  for (size_t i = 0; i < spans.size(); ++i) {
    told[i % parts_.size() / 2] += spans[i] * spans[i];
    total += spans[i] * spans[i];
  }
  planes.resize(key_bytes());
  std::iota(planes.begin(), planes.end(), uint16_t{0});
  std::ranges::sort(planes, [&](uint16_t a, uint16_t b) { return told[a] > told[b]; });
  float left = options_.skip * total;
  while (planes.size() > 1 && told[planes.back()] <= left) {
    left -= told[planes.back()];
    planes.pop_back();
  }
  std::ranges::sort(planes);
}

void KeyCodes::fetch(uint32_t layer, size_t kv_head, int32_t begin) const {
  if (!packed()) return;
  constexpr size_t kBlock = CodeBlocks::kBlock, kLine = 64;
  const CodeBlocks& codes = layers_[layer].heads[kv_head].codes;
  const size_t first = static_cast<size_t>(begin) / kBlock,
               end = std::min(first + kernels::kBlocksAhead, codes.blocks());
  for (size_t plane = 0; plane < key_bytes(); ++plane) {
    for (size_t block = first; block < end; ++block) {
      const CodeBlocks::Place place = codes.place(block * kBlock);
      const uint8_t* lines = place.codes + plane * place.stride;
      for (size_t at = 0; at < kBlock; at += kLine) __builtin_prefetch(lines + at);
    }
  }
}

void KeyCodes::sum_codes(SumCodes kernel, const CodeBlocks& codes, size_t first, size_t blocks,
                         size_t unit, kernels::CodeSumsArgs args) {
  constexpr size_t kBlock = CodeBlocks::kBlock;
  thread_local std::vector<const uint8_t*> places;
  uint16_t* out = args.out;
  for (size_t at = first; at < first + blocks;) {  // those in runs, then those behind
    args.stride = codes.place(at * kBlock).stride;
    places.clear();
    for (; at < first + blocks; ++at) {
      const CodeBlocks::Place place = codes.place(at * kBlock);
      if (place.stride != args.stride) break;
      places.push_back(place.codes);
    }
    args.blocks = places.size();
    const size_t behind = std::min(at + kernels::kBlocksAhead, codes.blocks());
    for (size_t next = at; next < behind; ++next) {
      const CodeBlocks::Place place = codes.place(next * kBlock);
      if (place.stride != args.stride) break;
      places.push_back(place.codes);
    }
    args.codes = places.data();
    args.next = places.size() - args.blocks;
    args.out = out + (at - first - args.blocks) * kBlock / unit;
    kernel(args);
  }
}

void KeyCodes::prepare_lookup(uint32_t layer, size_t kv_head, const float* q,
                              Lookup& lookup) const {
  lookup.q = q;
  if (!packed()) return;
  const Codebook& book = *layers_[layer].heads[kv_head].book;
  const size_t group = config_->n_head / config_->n_kv_head;
  auto& [_, tables, low, step, spans, planes] = lookup;
  tables.resize(group * key_bytes() * 2 * kernels::kCodeEntries);
  low.resize(group);
  step.resize(group);
  spans.resize(group * parts_.size());
  kernels::code_tables({parts_.size(), first_dims_.data(), book.transposed.data(), group, q,
                        config_->head_dim, tables.data(), low.data(), step.data(), spans.data()});
  choose_planes(spans, planes);
  std::array<float, kernels::kMostPlanes> middle;  // what is not read counts as that of its span
  middle.fill(0.5f);
  for (const uint16_t plane : planes) middle[plane] = 0.0f;
  for (size_t i = 0; i < spans.size(); ++i) {
    low[i / parts_.size()] += middle[i % parts_.size() / 2] * spans[i];
  }
}

uint64_t KeyCodes::packed_logits(SumCodes kernel, const Head& head, const Lookup& lookup,
                                 size_t begin, size_t end, size_t unit, float* logits,
                                 size_t stride) const {
  if (begin == end) return 0;
  constexpr size_t kBlock = kernels::kCodeBlock;
  const size_t group = config_->n_head / config_->n_kv_head;
  const size_t first = begin / kBlock, blocks = (end - 1) / kBlock + 1 - first;
  const size_t room = blocks * kBlock / unit, skipped = begin % kBlock / unit;
  thread_local std::vector<uint16_t> sums;
  sums.resize(group * room);
  sum_codes(kernel, head.codes, first, blocks, unit,
            {.planes = key_bytes(),
             .used = lookup.planes,
             .rows = group,
             .tables = lookup.tables.data(),
             .out = sums.data(),
             .out_stride = room});
  for (size_t row = 0; row < group; ++row) {
    kernels::code_logits(&sums[row * room + skipped], (end - begin) / unit, lookup.low[row],
                         lookup.step[row], logits + row * stride);
  }
  return (end - begin) * lookup.planes.size();
}

uint64_t KeyCodes::page_tops(uint32_t layer, size_t kv_head, const Lookup& lookup, int32_t begin,
                             int32_t end, float* tops, size_t stride) const {
  return packed_logits(kernels::code_page_tops, layers_[layer].heads[kv_head], lookup,
                       static_cast<size_t>(begin), static_cast<size_t>(end), kPageTokens, tops,
                       stride);
}

uint64_t KeyCodes::logits(uint32_t layer, size_t kv_head, const float* q, int32_t begin,
                          int32_t end, float* logits, size_t stride) const {
  thread_local Lookup lookup;
  prepare_lookup(layer, kv_head, q, lookup);
  return this->logits(layer, kv_head, lookup, begin, end, logits, stride);
}

// Queries are looked up kLanes at a time, whose entries lie side by side.
uint64_t KeyCodes::logits(uint32_t layer, size_t kv_head, const Lookup& lookup, int32_t begin,
                          int32_t end, float* logits, size_t stride) const {
  const Head& head = layers_[layer].heads[kv_head];
  const size_t group = config_->n_head / config_->n_kv_head, dim = config_->head_dim;
  const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
  if (packed()) {
    return packed_logits(kernels::code_sums, head, lookup, first, first + count, 1, logits, stride);
  }
  std::vector<Lanes> table(key_bytes() * kByteValues);
  for (size_t row = 0; row < group; row += kLanes) {
    const size_t lanes = std::min(kLanes, group - row);
    fill_table(*head.book, lookup.q + row * dim, lanes, table);
    for (size_t i = 0; i < count; ++i) {
      const CodeBlocks::Place place = head.codes.place(first + i);
      Lanes sum = table[place.codes[0]];
      for (size_t byte = 1; byte < key_bytes(); ++byte) {
        const Lanes& entry = table[byte * kByteValues + place.codes[byte * place.stride]];
        for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += entry[lane];
      }
      for (size_t lane = 0; lane < lanes; ++lane) logits[(row + lane) * stride + i] = sum[lane];
    }
  }
  return count * key_bytes();
}

// table: [key_bytes, kByteValues] products of queries and the centroids that a byte names. q:
// [lanes, head_dim]. Codes that are not packed.
void KeyCodes::fill_table(const Codebook& book, const float* q, size_t lanes,
                          std::span<Lanes> table) const {
  std::vector<float> products(clusters_);
  for (size_t part = 0; part < parts_.size(); ++part) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      std::fill(products.begin(), products.end(), 0.0f);
      for (size_t d = first_dims_[part]; d < first_dims_[part + 1]; ++d) {
        kernels::add_scaled(products.data(), &book.transposed[d * columns_],
                            q[lane * config_->head_dim + d], clusters_);
      }
      for (size_t value = 0; value < clusters_; ++value) {
        table[part * kByteValues + value][lane] = products[value];
      }
    }
  }
}

void KeyCodes::truncate(int32_t length) {
  for (Layer& layer : layers_) {
    if (length < layer.trained_end) layer = {};
    if (length >= layer.coded) continue;
    layer.coded = length;
    for (Head& head : layer.heads) head.codes.truncate(static_cast<size_t>(length));
  }
}

uint64_t KeyCodes::codebook_bytes() const {
  return size_t{config_->n_kv_head} * clusters_ * config_->head_dim * sizeof(float);
}

uint64_t KeyCodes::bytes() const {
  uint64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const auto& metric : *layer.metrics) bytes += metric.size() * sizeof(float);
    for (const Head& head : layer.heads) {
      const Codebook& book = *head.book;
      bytes += (book.centroids.size() + book.transposed.size() + book.directions.size() +
                book.halves.size()) *
               sizeof(float);
      bytes += head.codes.bytes();
    }
  }
  return bytes;
}

}  // namespace reprise
