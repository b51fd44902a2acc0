// The exact scan of ReAttention on a CPU beside an approximate one that keeps one winner of every
// tile of 128 keys, as the published code does. Both multiply by the same kernel, on one thread of
// a processor with AVX-512.
//
//     cmake --build build --target scan_bench && build/scan_bench
//
// Columns: rows of queries, keys, k, how alike 32 neighbouring keys are to the queries;
// microseconds of both (medians of runs in turns), their ratio; share of the k best that the
// approximate one finds.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "kernels/key_logits.h"
#include "kernels/key_tile.h"
#include "kernels/key_top_k_isa.h"

using namespace reprise::kernels;

constexpr size_t kDim = 64, kTile = 128, kBlock = 512, kBlockRows = 16, kRuns = 7, kMostRows = 256;

using Lanes = float __attribute__((vector_size(64)));

/// Offers a tile's best key alone; the published code is less sparing and merges every one.
__attribute__((target("avx512f"))) void offer_winner(const float* scores, int32_t first, size_t k,
                                                     RankedKey* list) {
  Lanes most, next;
  __builtin_memcpy(&most, scores, sizeof most);
  for (size_t i = 16; i < kTile; i += 16) {
    __builtin_memcpy(&next, scores + i, sizeof next);
    most = next > most ? next : most;
  }
  float best = most[0];
  for (size_t i = 1; i < 16; ++i) best = most[i] > best ? most[i] : best;
  if (!(best > list[k - 1].score)) return;
  insert_ranked(list, k, best,
                first + static_cast<int32_t>(std::find(scores, scores + kTile, best) - scores));
}

void approximate(const KeyTopKArgs& args, float* scores) {
  std::fill_n(args.best, args.rows * args.k, RankedKey{-INFINITY, -1});
  KeyLogitsArgs logits;
  logits.layout = args.layout;
  logits.q_stride = args.q_stride;
  logits.out = scores;
  logits.out_stride = kBlock;
  for (size_t end = args.pages.size(); end > 0; end -= kBlock / kPageTokens) {
    logits.pages = args.pages.subspan(end - kBlock / kPageTokens, kBlock / kPageTokens);
    for (size_t row = 0; row < args.rows; row += kBlockRows) {
      logits.rows = std::min(kBlockRows, args.rows - row);
      logits.q = args.q + row * args.q_stride;
      key_logits(logits);
      for (size_t i = 0; i < logits.rows * kBlock; i += kTile) {
        const int32_t first = logits.pages[i % kBlock / kPageTokens].index;
        offer_winner(scores + i, first, args.k, args.best + (row + i / kBlock) * args.k);
      }
    }
  }
}

void compare(size_t count, size_t rows, size_t k, float alike) {
  const KvLayout layout = {KvType::kBF16, 1, kDim};
  std::vector<std::byte> tiles(count / kPageTokens * layout.tile_bytes());
  std::vector<float> q(kMostRows * kDim), scores(kBlockRows * kBlock);
  std::vector<PageSpan> pages;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& x : q) x = normal(random) + 0.5f;
  for (size_t key = 0; key < count; ++key) {
    std::byte* tile = tiles.data() + key / kPageTokens * layout.tile_bytes();
    float values[kDim];
    for (float& x : values) x = normal(random) + (key / 32 == count / 64 ? alike : 0.0f);
    store_k(layout, tile, key % kPageTokens, values);
    if (key % kPageTokens == 0) pages.push_back({tile, nullptr, static_cast<int32_t>(key)});
  }
  std::vector<RankedKey> exact(rows * k), winners(rows * k);
  const KeyTopKArgs args = {&layout, Phase::kDecode, rows, q.data(), kDim, pages, k, exact.data()};
  KeyTopKArgs other = args;
  other.best = winners.data();
  std::vector<std::byte> scratch(key_top_k_scratch_bytes(args));
  std::vector<double> us[2];
  for (size_t run = 0; run < 2 * kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    run % 2 == 0 ? key_top_k(args, scratch.data()) : approximate(other, scores.data());
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    us[run % 2].push_back(taken.count());
  }
  for (auto& each : us) std::ranges::sort(each);
  size_t found = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    found += std::ranges::count(std::span(&winners[i / k * k], k), exact[i].key, &RankedKey::key);
  }
  const double a = us[0][kRuns / 2], b = us[1][kRuns / 2];
  fmt::print("{:4} {:8} {:3} {:3} {:10.0f} {:10.0f} {:6.3f} {:6.3f}\n", rows, count, k, alike, a, b,
             a / b, static_cast<double>(found) / static_cast<double>(exact.size()));
}

int main() {
  for (const size_t count : {size_t{1} << 16, size_t{1} << 20}) {
    for (const size_t rows : {size_t{3}, kMostRows}) {
      for (const size_t k : {1, 4, 16})
        for (const float alike : {0.0f, 1.0f}) compare(count, rows, k, alike);
    }
  }
}
