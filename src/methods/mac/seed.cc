#include "methods/mac/seed.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/attention.h"
#include "methods/key_list.h"
#include "methods/mac/mean_key.h"

namespace reprise {
namespace {

constexpr size_t kTileRows = 64;

struct Tile {
  std::span<const uint32_t> rows;  // of QueryRows::rows, ascending
  size_t kv_head;
  int64_t work;  // rows times keys
};

struct Scratch {
  std::vector<kernels::PageSpan> pages;
  std::vector<int32_t> begin, end;  // [rows, group]
  std::vector<float> q, out, lse;   // [rows, group, head_dim], [rows, group]
  std::vector<float> means;         // [rows, group, head_dim]
  MeanKeyScratch mean_key;
  std::vector<std::byte> kernel;
};

void attend_tile(const QueryRows& rows, const Tile& tile, const ModelConfig& config,
                 const MacCut& cut, std::span<const int32_t> begin, Scratch& scratch,
                 const PrefixResult& result) {
  const size_t group = config.n_head / config.n_kv_head, head_dim = config.head_dim;
  const size_t results = tile.rows.size() * group, width = group * head_dim;
  const auto at = [&](size_t i) { return tile.rows[i] * config.n_head + tile.kv_head * group; };
  scratch.begin.resize(results);
  scratch.end.resize(results);
  scratch.q.resize(results * head_dim);
  scratch.out.resize(results * head_dim);
  scratch.lse.resize(results);
  for (size_t i = 0; i < tile.rows.size(); ++i) {
    std::copy_n(&begin[at(i)], group, &scratch.begin[i * group]);
    std::fill_n(&scratch.end[i * group], group, cut.at(rows.rows[tile.rows[i]].position));
    std::memcpy(&scratch.q[i * width], rows.q_rotated + at(i) * head_dim, width * sizeof(float));
  }
  const int32_t first = *std::min_element(scratch.begin.begin(), scratch.begin.end());
  list_pages(rows, tile.kv_head, first, std::max(first, scratch.end.back()), scratch.pages);
  kernels::AttendArgs args;
  args.layout = &rows.kv->pool().layout();
  args.phase = kernels::Phase::kPrefill;
  args.rows = results;
  args.q = scratch.q.data();
  args.q_stride = head_dim;
  args.row_begin = scratch.begin.data();
  args.row_end = scratch.end.data();
  args.pages = scratch.pages;
  args.scale = config.attention_scale;
  args.soft_cap = config.attention_soft_cap;
  args.out = scratch.out.data();
  args.out_stride = head_dim;
  args.lse = scratch.lse.data();
  scratch.kernel.resize(std::max(scratch.kernel.size(), kernels::attend_scratch_bytes(args)));
  kernels::attend(args, scratch.kernel.data());
  if (result.means != nullptr) {
    scratch.means.resize(results * head_dim);
    const CoveredKeys covered = {tile.kv_head,       results,
                                 scratch.q.data(),   scratch.begin.data(),
                                 scratch.end.data(), scratch.lse.data()};
    mean_keys(rows, config, covered, scratch.mean_key, scratch.means.data());
    for (size_t i = 0; i < tile.rows.size(); ++i) {
      std::copy_n(&scratch.means[i * width], width, result.means + at(i) * head_dim);
    }
  }
  for (size_t i = 0; i < tile.rows.size(); ++i) {
    std::copy_n(&scratch.out[i * width], width, result.out + at(i) * head_dim);
    std::copy_n(&scratch.lse[i * group], group, result.lse + at(i));
  }
}

/// Appends tiles of a KV head's rows.
void add_tiles(const QueryRows& rows, std::span<const uint32_t> own, size_t kv_head,
               const MacCut& cut, std::span<const int32_t> begins, std::vector<Tile>& tiles) {
  for (size_t at = 0; at < own.size(); at += kTileRows) {
    const auto tile = own.subspan(at, std::min(kTileRows, own.size() - at));
    int64_t work = 0;
    for (const uint32_t row : tile) work += cut.at(rows.rows[row].position) - begins[row];
    tiles.push_back({tile, kv_head, work});
  }
}

}  // namespace

void prefix_attention(const QueryRows& rows, const ModelConfig& config, const MacCut& cut,
                      std::span<const int32_t> begin, const PrefixResult& result) {
  const size_t count = rows.rows.size(), group = config.n_head / config.n_kv_head;
  std::vector<uint32_t> order(config.n_kv_head * count);
  std::vector<int32_t> begins(count);  // of the KV head's rows
  std::vector<Tile> tiles;
  for (size_t head = 0; head < config.n_kv_head; ++head) {
    for (size_t row = 0; row < count; ++row) {
      const auto own = begin.subspan(row * config.n_head + head * group, group);
      begins[row] = *std::min_element(own.begin(), own.end());
    }
    const auto own = std::span(order).subspan(head * count, count);
    std::iota(own.begin(), own.end(), 0u);
    const auto reused = std::stable_partition(
        own.begin(), own.end(), [&](uint32_t row) { return begins[row] == cut.sink; });
    const auto whole = static_cast<size_t>(reused - own.begin());
    add_tiles(rows, own.first(whole), head, cut, begins, tiles);
    add_tiles(rows, own.subspan(whole), head, cut, begins, tiles);
  }
  // Those that read most are handed out first.
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const Tile& a, const Tile& b) { return a.work > b.work; });
  std::vector<Scratch> scratch(static_cast<size_t>(rows.pool->size()));
  rows.pool->run(tiles.size(), [&](size_t i, int thread) {
    attend_tile(rows, tiles[i], config, cut, begin, scratch[static_cast<size_t>(thread)], result);
  });
}

}  // namespace reprise
