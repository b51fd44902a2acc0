#include "methods/sign_hash.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "kernels/key_logits.h"
#include "kernels/ops.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

constexpr int32_t kPieceTokens = 64;  // keys whose products with all planes stay in the cache
constexpr size_t kLine = 64;          // bytes of a cache line

// Box & Muller 1958; std::normal_distribution differs between libraries.
float next_normal(std::mt19937_64& random) {
  const double u = static_cast<double>((random() >> 11) + 1) * 0x1p-53;
  const double v = static_cast<double>(random() >> 11) * 0x1p-53;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
}

uint64_t lines(size_t first, size_t end) {  // in bytes
  return first == end ? 0 : (end + kLine - 1) / kLine - first / kLine;
}

}  // namespace

SignPlanes::SignPlanes(uint32_t tables, uint32_t bits, uint32_t head_dim, uint32_t seed)
    : tables_(tables), bits_(bits), head_dim_(head_dim) {
  const size_t planes = tables_ * bits_;
  rows_.resize(planes * head_dim_);
  columns_.resize(planes * head_dim_);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < rows_.size(); ++i) {
    rows_[i] = next_normal(random);
    columns_[i % head_dim_ * planes + i / head_dim_] = rows_[i];
  }
}

void SignPlanes::project(const float* x, std::vector<float>& dots) const {
  const size_t planes = tables_ * bits_;
  dots.assign(planes, 0.0f);
  for (size_t d = 0; d < head_dim_; ++d) {
    kernels::add_scaled(dots.data(), columns_.data() + d * planes, x[d], planes);
  }
}

void SignPlanes::buckets_of(std::span<const float> dots, std::vector<uint16_t>& buckets) const {
  buckets.assign(tables_, 0);
  for (size_t i = 0; i < dots.size(); ++i) {
    buckets[i / bits_] = static_cast<uint16_t>(buckets[i / bits_] | (dots[i] > 0.0f) << i % bits_);
  }
}

void SignTables::prepare(const QueryRows& rows, size_t kv_head, int32_t begin, int32_t end,
                         const SignPlanes& planes) {
  const kernels::KvLayout& layout = rows.kv->pool().layout();
  begin_ = begin;
  norms_.assign(static_cast<size_t>(end - begin), 0.0f);
  std::vector<float> key(layout.head_dim);
  std::vector<double> sum(layout.head_dim);
  for (auto token = static_cast<size_t>(begin); token < static_cast<size_t>(end); ++token) {
    const std::byte* page = rows.kv->page(rows.layer, token / kPageTokens);
    kernels::load_k(layout, page + layout.k_offset(kv_head), token % kPageTokens, key.data());
    for (size_t d = 0; d < key.size(); ++d) sum[d] += key[d];
  }
  centre_.resize(key.size());
  for (size_t d = 0; d < key.size(); ++d) {
    centre_[d] = static_cast<float>(sum[d] / std::max<double>(1.0, static_cast<double>(count())));
  }
  planes.project(centre_.data(), plane_offset_);
  codes_.assign(planes.tables() * count(), 0);
  ids_.resize(planes.tables() * count());
  starts_.assign(planes.tables() * segments() * (planes.buckets() + 1), 0);
}

size_t SignTables::pieces() const {
  const auto end = static_cast<int32_t>(count()) + begin_;
  return static_cast<size_t>((end + kPieceTokens - 1) / kPieceTokens - begin_ / kPieceTokens);
}

void SignTables::hash_piece(const QueryRows& rows, size_t kv_head, size_t piece,
                            const SignPlanes& planes) {
  const kernels::KvLayout& layout = rows.kv->pool().layout();
  const int32_t start = (begin_ / kPieceTokens + static_cast<int32_t>(piece)) * kPieceTokens;
  const int32_t first = std::max(start, begin_);
  const int32_t end = std::min(start + kPieceTokens, begin_ + static_cast<int32_t>(count()));
  std::vector<kernels::PageSpan> pages;
  list_pages(rows, kv_head, first, end, pages);
  const size_t n_planes = plane_offset_.size(), stride = pages.size() * kPageTokens;
  std::vector<float> products(n_planes * stride), key(layout.head_dim);
  kernels::KeyLogitsArgs args;
  args.layout = &layout;
  args.rows = n_planes;
  args.q = planes.rows();
  args.q_stride = layout.head_dim;
  args.pages = pages;
  args.out = products.data();
  args.out_stride = stride;
  kernels::key_logits(args);
  const auto skip = static_cast<size_t>(first) % kPageTokens;
  const auto index = static_cast<size_t>(first - begin_), keys = static_cast<size_t>(end - first);
  for (size_t plane = 0; plane < n_planes; ++plane) {
    const size_t bit = plane % planes.bits();
    const float* product = &products[plane * stride + skip];
    uint16_t* codes = &codes_[plane / planes.bits() * count() + index];
    for (size_t i = 0; i < keys; ++i) {
      const bool set = product[i] > plane_offset_[plane];
      codes[i] = static_cast<uint16_t>((bit > 0 ? codes[i] : 0) | set << bit);
    }
  }
  for (size_t i = 0; i < keys; ++i) {
    const std::byte* page = pages[(skip + i) / kPageTokens].k;
    kernels::load_k(layout, page, (skip + i) % kPageTokens, key.data());
    double norm = 0.0;
    for (size_t d = 0; d < key.size(); ++d) {
      const double difference = double{key[d]} - centre_[d];
      norm += difference * difference;
    }
    norms_[index + i] = static_cast<float>(std::sqrt(norm));
  }
}

// Counting sort of every segment.
void SignTables::sort_table(size_t table, const SignPlanes& planes) {
  std::vector<uint16_t> next;
  for (size_t segment = 0; segment < segments(); ++segment) {
    const size_t first = table * count() + segment * kSegment;
    const size_t size = std::min(kSegment, count() - segment * kSegment);
    uint16_t* starts = &starts_[(table * segments() + segment) * (planes.buckets() + 1)];
    for (size_t i = 0; i < size; ++i) ++starts[codes_[first + i] + 1];
    for (size_t b = 0; b < planes.buckets(); ++b) {
      starts[b + 1] = static_cast<uint16_t>(starts[b + 1] + starts[b]);
    }
    next.assign(starts, starts + planes.buckets());
    for (size_t i = 0; i < size; ++i) {
      ids_[first + next[codes_[first + i]]++] = static_cast<uint16_t>(i);
    }
  }
}

uint64_t SignTables::collide(std::span<const uint16_t> buckets, size_t least, int32_t end,
                             const SignPlanes& planes, std::vector<uint16_t>& counts,
                             std::vector<int32_t>& keys) const {
  counts.assign(count(), 0);
  keys.clear();
  uint64_t read = 0;
  for (size_t table = 0; table < buckets.size(); ++table) {
    for (size_t segment = 0; segment < segments(); ++segment) {
      const size_t place = (table * segments() + segment) * (planes.buckets() + 1) + buckets[table];
      const size_t base = segment * kSegment, first = table * count() + base;
      const size_t from = first + starts_[place], to = first + starts_[place + 1];
      read += lines(from * sizeof(uint16_t), to * sizeof(uint16_t)) + 1;  // and that of the starts
      for (size_t i = from; i < to; ++i) {
        const size_t index = base + ids_[i];
        if (++counts[index] == least) keys.push_back(begin_ + static_cast<int32_t>(index));
      }
    }
  }
  std::erase_if(keys, [&](int32_t key) { return key >= end; });
  std::sort(keys.begin(), keys.end());
  return read * kLine;
}

uint64_t SignTables::bytes() const {
  return (centre_.capacity() + plane_offset_.capacity() + norms_.capacity()) * sizeof(float) +
         (codes_.capacity() + ids_.capacity() + starts_.capacity()) * sizeof(uint16_t);
}

}  // namespace reprise
