#include "kernels/cuda/kept_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "cuda/page_testing.h"

namespace reprise::kernels::cuda {
namespace {

struct Heads {
  uint32_t n_head, n_kv_head, head_dim;
  uint32_t group() const { return n_head / n_kv_head; }
};
constexpr Heads kHeads[] = {{9, 3, 64}, {8, 2, 128}, {16, 1, 96}, {4, 4, 256}, {12, 1, 128}};
constexpr KvType kTypes[] = {KvType::kBF16, KvType::kF16, KvType::kFP8};

// Pages of one layer: side pages, then those of a sequence, in any order of ids.
class Keys {
 public:
  Keys(const Heads& shape, KvType pages, int32_t side_tokens, int32_t first, int32_t last,
       unsigned seed)
      : heads(shape),
        type(pages),
        side(side_tokens),
        begin(first),
        end(last),
        random(seed),
        tiles(pages, shape.head_dim, 0) {
    const uint32_t side_pages = 6, own_pages = 40;
    std::vector<uint32_t> ids(side_pages + own_pages);
    std::iota(ids.begin(), ids.end(), 0u);
    std::shuffle(ids.begin(), ids.end(), random);
    side_table.assign(ids.begin(), ids.begin() + side_pages);
    table.assign(ids.begin() + side_pages, ids.end());
    tiles = TestTiles(type, heads.head_dim, ids.size() * heads.n_kv_head * 2);
    tiles.fill(random);
  }

  uint32_t count() const { return static_cast<uint32_t>(side + end - begin); }
  int32_t position(uint32_t key) const {  // -1: of a side token
    const auto nth = static_cast<int32_t>(key);
    return nth < side ? -1 : begin + nth - side;
  }
  // The K tile and the slot of a key.
  std::pair<size_t, uint32_t> place(uint32_t key, uint32_t kv_head) const {
    const auto token = static_cast<uint32_t>(position(key));
    const bool is_side = position(key) < 0;
    const uint32_t page = is_side ? side_table[key / 16] : table[token / 16];
    return {(size_t{page} * heads.n_kv_head + kv_head) * 2, (is_side ? key : token) % 16};
  }
  // [head_dim] of a key, or of its value.
  std::vector<double> values(uint32_t key, uint32_t kv_head, uint32_t which) const {
    const auto [tile, slot] = place(key, kv_head);
    std::vector<double> out(heads.head_dim);
    for (uint32_t d = 0; d < heads.head_dim; ++d) out[d] = tiles.value(tile + which, slot, d);
    return out;
  }
  // In units of e.
  double logit(const uint16_t* q, uint32_t key, uint32_t kv_head, float scale) const {
    const auto values = this->values(key, kv_head, 0);
    double sum = 0;
    for (uint32_t d = 0; d < heads.head_dim; ++d) sum += to_float(Bf16{q[d]}) * values[d];
    return sum * scale;
  }
  // Attention of a row over the keys up to a position; q: of the first head. [n_head][keys]
  std::vector<std::vector<double>> attention(const uint16_t* q, int32_t position, float scale,
                                             std::vector<double>* lse = nullptr) const {
    std::vector<std::vector<double>> all;
    for (uint32_t head = 0; head < heads.n_head; ++head) {
      std::vector<double> p(count());
      double total = 0;
      for (uint32_t key = 0; key < count(); ++key) {
        if (this->position(key) > position) continue;
        p[key] = std::exp(logit(q + head * heads.head_dim, key, head / heads.group(), scale));
        total += p[key];
      }
      for (double& x : p) x /= total;
      if (lse != nullptr) lse->push_back(std::log(total));
      all.push_back(std::move(p));
    }
    return all;
  }

  Heads heads;
  KvType type;
  int32_t side, begin, end;
  std::mt19937 random;
  TestTiles tiles;
  std::vector<uint32_t> side_table, table;
};

std::vector<uint16_t> random_queries(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> q(count);
  for (uint16_t& value : q) value = to_bf16(normal(random)).bits;
  return q;
}

const __nv_bfloat16* bf16(const DeviceArray<uint16_t>& array) {
  return reinterpret_cast<const __nv_bfloat16*>(array.get());
}

std::string trace(const Heads& heads, KvType type) {
  return std::to_string(heads.n_head) + "_" + std::to_string(heads.n_kv_head) + "_" +
         std::to_string(heads.head_dim) + ", type " + std::to_string(static_cast<int>(type));
}

TEST(KeyVotes, AreSumsOfAttention) {
  REPRISE_NEEDS_DEVICE();
  struct Range {
    int32_t side, begin, end;
    uint32_t rows;
  };
  for (const Heads& heads : kHeads) {
    for (const KvType type : kTypes) {
      for (const Range range : {Range{0, 0, 100, 20}, Range{37, 130, 211, 9}, Range{16, 64, 65, 1},
                                Range{96, 33, 640, 17}}) {
        SCOPED_TRACE(trace(heads, type) + ", side " + std::to_string(range.side));
        Keys keys(heads, type, range.side, range.begin, range.end, 5);
        const size_t width = size_t{heads.n_head} * heads.head_dim;
        const auto q = random_queries(range.rows * width, keys.random);
        const float scale = 1.0f / std::sqrt(static_cast<float>(heads.head_dim));
        const int32_t first = range.end - static_cast<int32_t>(range.rows);
        std::vector<float> lse;
        std::vector<std::vector<double>> expected(heads.n_head, std::vector<double>(keys.count()));
        for (uint32_t row = 0; row < range.rows; ++row) {
          std::vector<double> own;
          const auto p =
              keys.attention(&q[row * width], first + static_cast<int32_t>(row), scale, &own);
          lse.insert(lse.end(), own.begin(), own.end());
          for (uint32_t head = 0; head < heads.n_head; ++head) {
            for (uint32_t key = 0; key < keys.count(); ++key) expected[head][key] += p[head][key];
          }
        }
        const uint32_t stride = keys.count() + 5;
        const DeviceArray<uint8_t> kv(keys.tiles.bytes());
        const DeviceArray<uint32_t> side_table(keys.side_table), table(keys.table);
        const DeviceArray<uint16_t> device_q(q);
        const DeviceArray<float> device_lse(lse), votes(size_t{heads.n_head} * stride, 0xff);
        KeyVotesArgs args;
        args.kv = {kv.get(), type, heads.n_kv_head, heads.head_dim};
        args.keys = {side_table.get(), table.get(), keys.side, keys.begin, keys.end};
        args.n_head = heads.n_head;
        args.q = bf16(device_q);
        args.lse = device_lse.get();
        args.rows = range.rows;
        args.first = first;
        args.scale = scale;
        args.votes = votes.get();
        args.stride = stride;
        ASSERT_EQ(key_votes(args, nullptr), cudaSuccess);
        const auto got = votes.host();
        for (uint32_t head = 0; head < heads.n_head; ++head) {
          for (uint32_t key = 0; key < keys.count(); ++key) {
            // Up to 256 products of magnitude 2^4 are cut off at 2^-23 of it when they are added.
            const double tolerance = 0x1p-11 * expected[head][key] + 1e-9;
            ASSERT_NEAR(got[head * stride + key], expected[head][key], tolerance)
                << "head " << head << ", key " << key;
          }
          for (uint32_t key = keys.count(); key < stride; ++key) {
            ASSERT_TRUE(std::isnan(got[head * stride + key]));
          }
        }
      }
    }
  }
}

TEST(PoolVotes, IsTheRuleOfSnapKv) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kHeadCount = 6, kKvHeads = 2, kGroup = 3, kKeys = 300, kStride = 310;
  std::mt19937 random(1);
  std::vector<float> votes(kHeadCount * kStride);
  for (float& vote : votes) vote = std::uniform_real_distribution<float>(0, 5)(random);
  const DeviceArray<float> device_votes(votes);
  for (const uint32_t kernel : {1u, 2u, 7u, 255u}) {
    const uint32_t always = kernel - 1;
    for (const bool average : {false, true}) {
      for (const bool largest : {false, true}) {
        const DeviceArray<float> scores(kKvHeads * kStride, 0xff);
        ASSERT_EQ(pool_votes({device_votes.get(), kHeadCount, kKvHeads, kKeys, kStride, kernel,
                              average, largest, scores.get(), always},
                             nullptr),
                  cudaSuccess);
        const auto got = scores.host();
        for (uint32_t i = 0; i < kKvHeads * kKeys; ++i) {
          const uint32_t kv_head = i / kKeys, key = i % kKeys;
          if (key < always) {
            ASSERT_EQ(got[kv_head * kStride + key], std::numeric_limits<float>::infinity());
            continue;
          }
          double joined = 0;
          for (uint32_t head = kv_head * kGroup; head < (kv_head + 1) * kGroup; ++head) {
            const auto before = static_cast<int32_t>(kernel / 2);
            const auto after = static_cast<int32_t>(kernel - kernel / 2);
            double pooled = 0;
            for (int32_t n = -before; n < after; ++n) {
              const int32_t near = static_cast<int32_t>(key) + n;
              if (near < 0 || near >= static_cast<int32_t>(kKeys)) continue;
              const double vote = votes[head * kStride + static_cast<uint32_t>(near)];
              pooled = average ? pooled + vote / kernel : std::max(pooled, vote);
            }
            joined = largest ? std::max(joined, pooled) : joined + pooled;
          }
          ASSERT_NEAR(got[kv_head * kStride + key], joined, 1e-5 * joined) << kernel << ", " << key;
        }
      }
    }
  }
}

TEST(AddVotes, GoOnTopOfWhatWasThere) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kHeadCount = 4, kKvHeads = 2, kStride = 200, kSide = 20, kRing = 31;
  constexpr int32_t kBegin = 50, kEnd = 180, kKnown = 80, kFirst = 120;
  constexpr uint32_t kRows = kEnd - kFirst, kBefore = kSide + kRing;
  std::mt19937 random(1);
  std::vector<float> votes(kHeadCount * kStride);
  for (float& vote : votes) vote = std::uniform_real_distribution<float>(0, 5)(random);
  std::vector<KeyWeight> before(kKvHeads * kBefore);
  for (KeyWeight& weight : before) {
    weight = {std::uniform_real_distribution<float>(0, 5)(random),
              static_cast<float>(random() % 9)};
  }
  const DeviceArray<float> device_votes(votes), scores(kKvHeads * kStride, 0xff);
  const DeviceArray<KeyWeight> device_before(before), weights(kKvHeads * kStride, 0xff);
  AddVotesArgs args;
  args.votes = device_votes.get();
  args.n_head = kHeadCount;
  args.n_kv_head = kKvHeads;
  args.stride = kStride;
  args.keys = {nullptr, nullptr, kSide, kBegin, kEnd};
  args.rows = kRows;
  args.first = kFirst;
  args.weights_before = device_before.get();
  args.side_tokens = kSide;
  args.ring = kRing;
  args.known = kKnown;
  args.weights = weights.get();
  args.scores = scores.get();
  for (const bool per_row : {false, true}) {
    args.per_row = per_row;
    ASSERT_EQ(add_votes(args, nullptr), cudaSuccess);
    const auto got = weights.host();
    const auto got_scores = scores.host();
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      for (uint32_t key = 0; key < kSide + (kEnd - kBegin); ++key) {
        const int32_t position = kBegin + static_cast<int32_t>(key - kSide);
        KeyWeight expected = {};
        if (key < kSide) expected = before[head * kBefore + key];
        if (key >= kSide && position < kKnown) {
          expected = before[head * kBefore + kSide + static_cast<uint32_t>(position) % kRing];
        }
        for (uint32_t n = 0; n < 2; ++n) expected.x += votes[(2 * head + n) * kStride + key];
        expected.y += static_cast<float>(key < kSide ? static_cast<int32_t>(kRows)
                                                     : kEnd - std::max(kFirst, position));
        const size_t at = head * kStride + key;
        ASSERT_NEAR(got[at].x, expected.x, 1e-5) << key;
        ASSERT_EQ(got[at].y, expected.y) << key;
        ASSERT_NEAR(got_scores[at], per_row ? expected.x / std::max(expected.y, 1.0f) : expected.x,
                    1e-5);
      }
    }
  }
}

TEST(ChooseKeys, AreTheLargestInOrder) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kHeadCount = 3;
  struct Counts {
    uint32_t candidates, chosen, tail;
  };
  for (const Counts n : {Counts{0, 0, 5}, Counts{70, 0, 3}, Counts{70, 70, 0}, Counts{3000, 17, 64},
                         Counts{20000, 1000, 24}, Counts{100, 99, 1}}) {
    const uint32_t stride = n.candidates + n.tail + 1;
    std::mt19937 random(n.chosen);
    std::vector<float> scores(size_t{kHeadCount} * stride);
    for (float& score : scores) score = static_cast<float>(random() % 1000);  // ties
    const DeviceArray<float> device_scores(scores);
    const DeviceArray<uint32_t> kept(size_t{kHeadCount} * (n.chosen + n.tail), 0xff);
    ASSERT_EQ(choose_keys({device_scores.get(), kHeadCount, stride, n.candidates, n.chosen, n.tail,
                           kept.get()},
                          nullptr),
              cudaSuccess);
    const auto got = kept.host();
    for (uint32_t head = 0; head < kHeadCount; ++head) {
      std::vector<uint32_t> expected(n.candidates);
      std::iota(expected.begin(), expected.end(), 0u);
      std::stable_sort(expected.begin(), expected.end(), [&](uint32_t a, uint32_t b) {
        return scores[head * stride + a] > scores[head * stride + b];
      });
      expected.resize(n.chosen);
      std::sort(expected.begin(), expected.end());
      for (uint32_t i = 0; i < n.tail; ++i) expected.push_back(n.candidates + i);
      const auto from = got.begin() + head * (n.chosen + n.tail);
      ASSERT_EQ(std::vector<uint32_t>(from, from + n.chosen + n.tail), expected) << n.candidates;
    }
  }
}

TEST(CompactKeys, CopiesTokensToTheFront) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kRing = 13;
  for (const Heads& heads : kHeads) {
    for (const KvType type : kTypes) {
      SCOPED_TRACE(trace(heads, type));
      constexpr uint32_t kCount = 90, kSide = 96;
      Keys keys(heads, type, 77, 130, 300, 5);
      std::vector<uint32_t> kept;
      for (uint32_t head = 0; head < heads.n_kv_head; ++head) {
        std::set<uint32_t> some;
        while (some.size() < kCount) some.insert(keys.random() % keys.count());
        kept.insert(kept.end(), some.begin(), some.end());
      }
      std::vector<KeyWeight> weights(heads.n_kv_head * keys.count());
      for (size_t i = 0; i < weights.size(); ++i) weights[i] = {static_cast<float>(i), 1.0f};
      const DeviceArray<uint8_t> kv(keys.tiles.bytes());
      const DeviceArray<uint32_t> side_table(keys.side_table), table(keys.table), device_kept(kept);
      const DeviceArray<KeyWeight> device_weights(weights),
          after(size_t{heads.n_kv_head} * (kSide + kRing), 0xff);
      const DeviceArray<int32_t> until(heads.n_kv_head);
      CompactKeysArgs args;
      args.kv = {kv.get(), type, heads.n_kv_head, heads.head_dim};
      args.keys = {side_table.get(), table.get(), keys.side, keys.begin, keys.end};
      args.kept = device_kept.get();
      args.count = kCount;
      args.weights = device_weights.get();
      args.stride = keys.count();
      args.side_tokens = kSide;
      args.ring = kRing;
      args.ring_begin = keys.end - static_cast<int32_t>(kRing) + 1;
      args.weights_after = after.get();
      args.until = until.get();
      ASSERT_EQ(compact_keys(args, nullptr), cudaSuccess);
      Keys moved = keys;
      moved.tiles.bytes() = kv.host();
      const auto got = after.host();
      for (uint32_t head = 0; head < heads.n_kv_head; ++head) {
        ASSERT_EQ(until.host()[head], keys.end);
        const KeyWeight* own = &got[head * (kSide + kRing)];
        Keys slots = moved;  // all of its side tokens are there now
        slots.side = kCount;
        for (uint32_t slot = 0; slot < kCount; ++slot) {
          const uint32_t key = kept[head * kCount + slot];
          ASSERT_EQ(own[slot].x, weights[head * keys.count() + key].x);
          for (const uint32_t which : {0u, 1u}) {
            const auto is = slots.values(slot, head, which), was = keys.values(key, head, which);
            for (uint32_t d = 0; d < heads.head_dim; ++d) {
              ASSERT_EQ(is[d], was[d]) << "head " << head << ", slot " << slot << ", key " << key;
            }
          }
        }
        for (int32_t position = args.ring_begin; position < keys.end; ++position) {
          const auto key = static_cast<uint32_t>(keys.side + position - keys.begin);
          ASSERT_EQ(own[kSide + static_cast<uint32_t>(position) % kRing].x,
                    weights[head * keys.count() + key].x);
        }
      }
    }
  }
}

TEST(KeptLists, NameSideTokensAndOwnOnes) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kLayers = 2, kTableRows = 8, kCapacity = 12, kListRows = 7, kSidePages = 3;
  constexpr uint32_t kListCapacity = kSidePages + kCapacity + 1, kFirst = 1;
  const std::vector<int32_t> positions = {0, 15, 40, 100, 191, 130};
  const std::vector<KeptRow> rows = {{0, 0}, {0, 0}, {48, 40}, {33, 96}, {17, 101}, {0, 77}};
  const auto count = static_cast<uint32_t>(positions.size());
  std::vector<uint32_t> tables(kLayers * kTableRows * kCapacity),
      side_tables(kLayers * kListRows * kSidePages);
  std::iota(tables.begin(), tables.end(), 1000u);
  std::iota(side_tables.begin(), side_tables.end(), 1u);
  const DeviceArray<uint32_t> device_tables(tables), device_sides(side_tables),
      pages(kLayers * kListRows * kListCapacity, 0xff);
  const DeviceArray<uint16_t> slots(kLayers * kListRows * kListCapacity, 0xff);
  const DeviceArray<int32_t> device_positions(positions), keys(kLayers * kListRows, 0xff);
  const DeviceArray<KeptRow> device_rows(rows);
  for (const int32_t recent : {0, 1, 20, 1000}) {
    KeptLists args;
    args.tables = device_tables.get();
    args.side_tables = device_sides.get();
    args.positions = device_positions.get();
    args.rows = device_rows.get();
    args.layers = kLayers;
    args.table_rows = kTableRows;
    args.capacity = kCapacity;
    args.first = kFirst;
    args.count = count;
    args.heavy = 35;
    args.recent = recent;
    args.pages = pages.get();
    args.slots = slots.get();
    args.keys = keys.get();
    args.list_rows = kListRows;
    args.list_capacity = kListCapacity;
    args.side_capacity = kSidePages;
    ASSERT_EQ(kept_lists(args, nullptr), cudaSuccess);
    const auto got_pages = pages.host();
    const auto got_slots = slots.host();
    const auto got_keys = keys.host();
    for (uint32_t i = 0; i < kLayers * count; ++i) {
      const uint32_t layer = i / count, row = i % count;
      KeptRow own = rows[row];
      if (recent > 0) {
        own.begin = std::max(0, positions[row] + 1 - recent);
        own.side = std::min(35, own.begin);
      }
      std::vector<std::pair<uint32_t, uint32_t>> expected, named;
      for (int32_t key = 0; key < own.side; ++key) {
        const auto nth = static_cast<uint32_t>(key);
        expected.emplace_back(
            side_tables[(layer * kListRows + kFirst + row) * kSidePages + nth / 16], nth % 16);
      }
      for (int32_t key = own.begin; key <= positions[row]; ++key) {
        const auto nth = static_cast<uint32_t>(key);
        expected.emplace_back(tables[(layer * kTableRows + kFirst + row) * kCapacity + nth / 16],
                              nth % 16);
      }
      const size_t list = layer * kListRows + kFirst + row;
      for (uint32_t key = 0; key < static_cast<uint32_t>(got_keys[list]); ++key) {
        const size_t at = list * kListCapacity + key / 16;
        if ((got_slots[at] >> key % 16 & 1) != 0) named.emplace_back(got_pages[at], key % 16);
      }
      ASSERT_EQ(named, expected) << "recent " << recent << ", row " << row << ", layer " << layer;
    }
  }
}

struct H2oSetting {
  uint32_t heavy, recent;
  bool per_row = false;
};

// What a KV head keeps by the method, in double, and in which side slots.
class H2oHead {
 public:
  H2oHead(const Keys& keys, uint32_t head, const H2oSetting& setting)
      : keys_(keys), head_(head), setting_(setting) {}

  // A row's attention over what is kept and its own token. q: of all heads.
  void add(const uint16_t* q, int32_t at, float scale) {
    const Heads& heads = keys_.heads;
    tokens_[at] = {};
    for (uint32_t n = head_ * heads.group(); n < (head_ + 1) * heads.group(); ++n) {
      double total = 0;
      std::map<int32_t, double> p;
      for (const auto& [token, _] : tokens_) {
        p[token] = std::exp(
            keys_.logit(&q[n * heads.head_dim], static_cast<uint32_t>(token), head_, scale));
        total += p[token];
      }
      for (auto& [token, weight] : p) tokens_[token].sum += weight / total;
    }
    for (auto& [token, weight] : tokens_) weight.rows += 1;
  }

  // own: the device's weights of this head. What it did is followed where two sums are nearly
  // equal.
  void check_weights(const KeyWeight* own, int32_t leaving) const {
    for (const auto& [token, weight] : tokens_) {
      const bool is_heavy = token < leaving;
      if (token == leaving) continue;  // it may have moved
      const uint32_t cell = static_cast<uint32_t>(token) % (setting_.recent + 1);
      const KeyWeight is = own[is_heavy ? slots_.at(token) : setting_.heavy + cell];
      const bool replaced = is_heavy && is.y != static_cast<float>(weight.rows);
      if (replaced) continue;
      ASSERT_NEAR(is.x, weight.sum, 1e-3 * weight.sum + 1e-6) << "head " << head_ << ", " << token;
    }
  }

  // The token that leaves the recent ones takes a free slot, or that of the lightest.
  void move(int32_t leaving) {
    if (slots_.size() < setting_.heavy) {
      const auto slot = static_cast<uint32_t>(slots_.size());
      slots_[leaving] = slot;
      return;
    }
    int32_t dropped = leaving;
    double least = score(leaving);
    for (const auto& [token, slot] : slots_) {
      if (score(token) < least) {
        dropped = token;
        least = score(token);
      }
    }
    if (dropped != leaving) {
      const uint32_t slot = slots_.at(dropped);
      slots_.erase(dropped);
      slots_[leaving] = slot;
    }
    tokens_.erase(dropped);
  }

  void check_slots(const KeyWeight* own) const {
    for (const auto& [token, slot] : slots_) {
      const double sum = tokens_.at(token).sum;
      ASSERT_NEAR(own[slot].x, sum, 1e-3 * sum + 1e-6)
          << "head " << head_ << ", slot " << slot << ", token " << token;
    }
  }

  // tiles: of the device, whose side pages hold copies.
  void check_copies(const TestTiles& tiles) const {
    Keys side = keys_;
    side.tiles = tiles;
    side.side = static_cast<int32_t>(setting_.heavy);
    for (const auto& [token, slot] : slots_) {
      for (const uint32_t which : {0u, 1u}) {
        ASSERT_EQ(side.values(slot, head_, which),
                  keys_.values(static_cast<uint32_t>(token), head_, which))
            << "head " << head_ << ", slot " << slot;
      }
    }
  }

 private:
  struct Token {
    double sum = 0, rows = 0;
  };
  double score(int32_t token) const {
    const Token& of = tokens_.at(token);
    return setting_.per_row ? of.sum / std::max(of.rows, 1.0) : of.sum;
  }

  const Keys& keys_;
  uint32_t head_;
  H2oSetting setting_;
  std::map<int32_t, Token> tokens_;    // by position
  std::map<int32_t, uint32_t> slots_;  // of heavy tokens
};

// A sequence whose keys are all there from the start, decoded from position 0 on.
void follow_h2o(const Heads& heads, KvType type, const H2oSetting& setting) {
  const auto [heavy, recent, per_row] = setting;
  SCOPED_TRACE(trace(heads, type) + ", heavy " + std::to_string(heavy) + ", recent " +
               std::to_string(recent) + ", per row " + std::to_string(per_row));
  constexpr int32_t kSteps = 90;
  constexpr uint32_t kLayers = 2, kLayer = 1;
  Keys keys(heads, type, 0, 0, 1, 3);
  const size_t width = size_t{heads.n_head} * heads.head_dim;
  const uint32_t cells = heavy + recent + 1;
  const DeviceArray<uint8_t> kv(keys.tiles.bytes());
  const DeviceArray<uint32_t> side_table(keys.side_table), table(keys.table);
  const DeviceArray<KeyWeight> weights(size_t{kLayers} * heads.n_kv_head * cells);
  const DeviceArray<int32_t> until(size_t{kLayers} * heads.n_kv_head), position(1);
  const DeviceArray<uint16_t> device_q(width);
  const DeviceArray<KeptRow> rows(std::vector<KeptRow>{{0, 0, weights.get(), until.get()}});
  const DeviceArray<float> logits(size_t{heads.n_head} * h2o_logits(heavy, recent));
  H2oStepArgs args;
  args.kv = {kv.get(), type, heads.n_kv_head, heads.head_dim};
  args.layer = kLayer;
  args.count = 1;
  args.n_head = heads.n_head;
  args.rows = rows.get();
  args.positions = position.get();
  args.pages = table.get();
  args.side_pages = side_table.get();
  args.capacity = static_cast<uint32_t>(keys.table.size());
  args.side_capacity = static_cast<uint32_t>(keys.side_table.size());
  args.heavy = heavy;
  args.recent = recent;
  args.per_row = per_row;
  args.q = bf16(device_q);
  args.scale = 1.0f / std::sqrt(static_cast<float>(heads.head_dim));
  args.logits = logits.get();
  std::vector<H2oHead> kept;
  for (uint32_t head = 0; head < heads.n_kv_head; ++head) kept.emplace_back(keys, head, setting);
  for (int32_t at = 0; at < kSteps; ++at) {
    SCOPED_TRACE("position " + std::to_string(at));
    const auto q = random_queries(width, keys.random);
    ASSERT_EQ(cudaMemcpy(device_q.get(), q.data(), width * 2, cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(position.get(), &at, sizeof at, cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_EQ(h2o_step(args, nullptr), cudaSuccess);
    const auto got = weights.host();
    const int32_t leaving = at - static_cast<int32_t>(recent);
    keys.end = at + 1;
    for (uint32_t head = 0; head < heads.n_kv_head; ++head) {
      const KeyWeight* own = &got[(kLayer * heads.n_kv_head + head) * cells];
      kept[head].add(q.data(), at, args.scale);
      kept[head].check_weights(own, leaving);
      if (leaving >= 0) kept[head].move(leaving);
      if (leaving >= 0) kept[head].check_slots(own);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  // The copies, and that a row that was accounted for moves nothing.
  const auto bytes = kv.host();
  TestTiles tiles = keys.tiles;
  tiles.bytes() = bytes;
  for (const H2oHead& head : kept) head.check_copies(tiles);
  ASSERT_EQ(h2o_step(args, nullptr), cudaSuccess);
  ASSERT_EQ(kv.host(), bytes);
}

TEST(H2oStep, FollowsTheMethod) {
  REPRISE_NEEDS_DEVICE();
  for (const Heads& heads : kHeads) {
    for (const KvType type : kTypes) {
      follow_h2o(heads, type, {20, 17});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  follow_h2o(kHeads[0], KvType::kBF16, {20, 17, true});
  follow_h2o(kHeads[0], KvType::kBF16, {33, 1});
  follow_h2o(kHeads[0], KvType::kBF16, {0, 16});
}

TEST(KeptKeysArgs, WhatIsNotServedIsSaid) {
  REPRISE_NEEDS_DEVICE();
  KeyVotesArgs votes;
  votes.kv = {nullptr, KvType::kBF16, 1, 80};
  votes.n_head = 1;
  votes.rows = 1;
  votes.keys.end = 1;
  EXPECT_EQ(key_votes(votes, nullptr), cudaErrorNotSupported);
  H2oStepArgs step;
  step.kv = votes.kv;
  step.count = step.n_head = 1;
  EXPECT_EQ(h2o_step(step, nullptr), cudaErrorNotSupported);
  step.kv.head_dim = 64;
  step.n_head = 17;
  EXPECT_EQ(h2o_step(step, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace reprise::kernels::cuda
