#include "methods/mac/seed.h"

#include <algorithm>
#include <cstring>

#include "kernels/attention.h"
#include "methods/key_list.h"
#include "methods/mac/mean_key.h"

namespace reprise {
namespace {

constexpr size_t kTileRows = 64;

struct Tile {
  size_t first, rows;  // of QueryRows::rows
  size_t kv_head;
};

struct Scratch {
  std::vector<kernels::PageSpan> pages;
  std::vector<int32_t> begin, end;  // [rows, group]
  std::vector<float> q, out, lse;   // [rows, group, head_dim], [rows, group]
  std::vector<float> means;         // [rows, group, head_dim]
  MeanKeyScratch mean_key;
  std::vector<std::byte> kernel;
};

/// out, lse, means (or null): of the tile's first row and head, in arrays of [rows, n_head].
void attend_tile(const QueryRows& rows, const Tile& tile, const ModelConfig& config,
                 const MacCut& cut, Scratch& scratch, float* out, float* lse, float* means) {
  const size_t group = config.n_head / config.n_kv_head, head_dim = config.head_dim;
  const size_t results = tile.rows * group, width = group * head_dim;
  const size_t head = tile.kv_head * group;
  scratch.begin.assign(results, cut.sink);
  scratch.end.resize(results);
  scratch.q.resize(results * head_dim);
  scratch.out.resize(results * head_dim);
  scratch.lse.resize(results);
  for (size_t i = 0; i < tile.rows; ++i) {
    const size_t row = tile.first + i;
    std::fill_n(&scratch.end[i * group], group, cut.at(rows.rows[row].position));
    std::memcpy(&scratch.q[i * width], rows.q_rotated + (row * config.n_head + head) * head_dim,
                width * sizeof(float));
  }
  const int32_t end = std::max(cut.sink, scratch.end.back());
  list_pages(rows, tile.kv_head, cut.sink, end, scratch.pages);
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
  if (means != nullptr) {
    scratch.means.resize(results * head_dim);
    const CoveredKeys covered = {tile.kv_head,       results,
                                 scratch.q.data(),   scratch.begin.data(),
                                 scratch.end.data(), scratch.lse.data()};
    mean_keys(rows, config, covered, scratch.mean_key, scratch.means.data());
    for (size_t i = 0; i < tile.rows; ++i) {
      std::memcpy(means + i * config.n_head * head_dim, &scratch.means[i * width],
                  width * sizeof(float));
    }
  }
  for (size_t i = 0; i < tile.rows; ++i) {
    std::memcpy(out + i * config.n_head * head_dim, &scratch.out[i * width], width * sizeof(float));
    std::memcpy(lse + i * config.n_head, &scratch.lse[i * group], group * sizeof(float));
  }
}

}  // namespace

void prefix_attention(const QueryRows& rows, size_t first, const ModelConfig& config,
                      const MacCut& cut, Partial& result, std::vector<float>* means) {
  const size_t count = rows.rows.size() - first, group = config.n_head / config.n_kv_head;
  result.out.resize(count * config.n_head * config.head_dim);
  result.lse.resize(count * config.n_head);
  if (means != nullptr) means->resize(result.out.size());
  std::vector<Tile> tiles;
  for (size_t at = (count + kTileRows - 1) / kTileRows * kTileRows; at > 0; at -= kTileRows) {
    const size_t begin = at - kTileRows;  // the last tile reads most, so it is handed out first
    for (size_t head = 0; head < config.n_kv_head; ++head) {
      tiles.push_back({first + begin, std::min(kTileRows, count - begin), head});
    }
  }
  std::vector<Scratch> scratch(static_cast<size_t>(rows.pool->size()));
  rows.pool->run(tiles.size(), [&](size_t i, int thread) {
    const Tile& tile = tiles[i];
    const size_t at = (tile.first - first) * config.n_head + tile.kv_head * group;
    attend_tile(rows, tile, config, cut, scratch[static_cast<size_t>(thread)],
                &result.out[at * config.head_dim], &result.lse[at],
                means != nullptr ? &(*means)[at * config.head_dim] : nullptr);
  });
}

}  // namespace reprise
