#include "kernels/cuda/paged_prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "cuda/page_testing.h"

namespace reprise::kernels::cuda {
namespace {

struct Heads {
  uint32_t n_head, n_kv_head, head_dim;
};
constexpr Heads kHeads[] = {{8, 2, 128}, {9, 3, 64},  {2, 2, 128}, {16, 1, 128},
                            {6, 2, 64},  {2, 2, 64},  {12, 1, 64}, {8, 2, 96},
                            {10, 2, 96}, {4, 1, 256}, {2, 2, 256}};

constexpr uint32_t kNoPage = 0x7fffffff;

struct Chunk {
  int32_t position;
  uint32_t rows;
};

struct Options {
  KvType type = KvType::kBF16;
  bool f32_out = false;
  float soft_cap = 0.0f, v_power = 0.0f;
  int32_t window = 0, first = 0, lag = 0, align = 1;
  int32_t step = 1;         // between positions, on average; above 1 they are named
  uint32_t other_rows = 0;  // before those of the call and behind them
};

// A call with random contents, and what double precision makes of the same pages.
class Case {
 public:
  Case(const Heads& heads, std::vector<Chunk> chunks, const Options& options, unsigned seed)
      : heads_(heads),
        options_(options),
        random_(seed),
        chunks_(std::move(chunks)),
        tiles_(options.type, heads.head_dim, 0) {
    const auto others = [&] {
      rows_ += options.other_rows;
      positions_.resize(rows_);
    };
    others();
    for (const Chunk& chunk : chunks_) {
      sequences_.push_back({rows_, chunk.rows, chunk.position});
      for (uint32_t i = 0; i < chunk.rows; ++i) positions_.push_back(position_of(chunk, i));
      rows_ += chunk.rows;
      capacity_ = std::max(capacity_, pages_of(chunk));
    }
    others();
    // Pages that no row sees have an id beyond all pages: reading them would fail.
    ids_.assign(chunks_.size() * capacity_, kNoPage);
    uint32_t pages = 0;
    for (const Chunk& chunk : chunks_) pages += pages_of(chunk);
    std::vector<uint32_t> order(pages);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random_);
    for (size_t sequence = 0; sequence < chunks_.size(); ++sequence) {
      const auto first = static_cast<uint32_t>(first_key(chunks_[sequence].position)) / kPageTokens;
      for (uint32_t page = 0; page < pages_of(chunks_[sequence]); ++page) {
        if (page >= first && chunks_[sequence].rows > 0) {
          ids_[sequence * capacity_ + page] = order.back();
        }
        order.pop_back();
      }
    }
    std::normal_distribution<float> normal;
    tiles_ = TestTiles(options.type, heads.head_dim, size_t{pages} * heads.n_kv_head * 2);
    tiles_.fill(random_, options.v_power);
    for (size_t sequence = 0; sequence < chunks_.size(); ++sequence) spoil_unseen(sequence);
    q_.resize(size_t{rows_} * heads.n_head * heads.head_dim);
    for (uint16_t& value : q_) value = to_bf16(2.0f * normal(random_)).bits;
  }

  void run_and_check() {
    const DeviceArray<uint8_t> kv(tiles_.bytes());
    const DeviceArray<uint16_t> q(q_);
    const DeviceArray<uint32_t> ids(ids_);
    const DeviceArray<PrefillRows> sequences(sequences_);
    const DeviceArray<int32_t> positions(positions_);
    const size_t rows = size_t{rows_} * heads_.n_head, values = rows * heads_.head_dim;
    const DeviceArray<float> out(options_.f32_out ? values : 0, 0xff), lse(rows, 0xff);
    const DeviceArray<uint16_t> narrow_out(options_.f32_out ? 0 : values, 0xff);
    const DeviceArray<char> workspace(paged_prefill_workspace(heads_.head_dim));
    PagedPrefillArgs args;
    args.kv = {kv.get(), options_.type, heads_.n_kv_head, heads_.head_dim};
    args.sequences = sequences.get();
    args.pages = ids.get();
    args.batch = static_cast<uint32_t>(chunks_.size());
    args.capacity = capacity_;
    args.n_head = heads_.n_head;
    args.first_row = options_.other_rows;
    args.rows = rows_ - 2 * options_.other_rows;
    args.q = q.get();
    if (options_.step > 1) args.positions = positions.get();
    args.scale = 1.0f / std::sqrt(static_cast<float>(heads_.head_dim));
    args.soft_cap = options_.soft_cap;
    args.window = options_.window;
    args.first_key = options_.first;
    args.lag = options_.lag;
    args.align = options_.align;
    args.out = options_.f32_out ? static_cast<void*>(out.get()) : narrow_out.get();
    args.f32_out = options_.f32_out;
    args.lse = lse.get();
    args.workspace = workspace.get();
    for (int call = 0; call < 2; ++call) {  // the workspace serves again
      ASSERT_EQ(paged_prefill(args, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    std::vector<float> outs = out.host();
    if (!options_.f32_out) {
      for (const uint16_t value : narrow_out.host()) outs.push_back(to_float(Bf16{value}));
    }
    const std::vector<float> lses = lse.host();
    if (options_.other_rows > 0) {  // are not touched
      EXPECT_TRUE(std::isnan(lses.front()));
      EXPECT_TRUE(std::isnan(lses.back()));
    }
    const uint32_t group = heads_.n_head / heads_.n_kv_head;
    for (size_t sequence = 0; sequence < chunks_.size(); ++sequence) {
      for (uint32_t kv_head = 0; kv_head < heads_.n_kv_head; ++kv_head) {
        const std::vector<double> k = unpack(sequence, kv_head, 0),
                                  v = unpack(sequence, kv_head, 1);
        for (uint32_t i = 0; i < chunks_[sequence].rows * group; ++i) {
          const uint32_t row = i / group, head = kv_head * group + i % group;
          const size_t at = size_t{sequences_[sequence].first + row} * heads_.n_head + head;
          SCOPED_TRACE("sequence " + std::to_string(sequence) + " row " + std::to_string(row) +
                       " head " + std::to_string(head));
          check_row(position_of(chunks_[sequence], row), at, k, v, &outs[at * heads_.head_dim],
                    lses[at], args.scale);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }

 private:
  int32_t position_of(const Chunk& chunk, uint32_t row) const {
    const auto nth = static_cast<int32_t>(row);
    return chunk.position + nth * options_.step + nth % options_.step;
  }
  // All that rows see, or none where there are no rows.
  uint32_t keys_of(const Chunk& chunk) const {
    if (chunk.rows == 0) return static_cast<uint32_t>(chunk.position);
    return static_cast<uint32_t>(position_of(chunk, chunk.rows - 1)) + 1;
  }
  uint32_t pages_of(const Chunk& chunk) const {
    return (keys_of(chunk) + kPageTokens - 1) / kPageTokens;
  }
  int32_t first_key(int32_t position) const {
    return options_.window > 0 ? std::max(0, position - options_.window + 1) : options_.first;
  }
  int32_t end_key(int32_t position) const {
    return (position + 1 - options_.lag) / options_.align * options_.align;
  }
  // Tokens of the last page that no row sees.
  void spoil_unseen(size_t sequence) {
    const Chunk& chunk = chunks_[sequence];
    const uint32_t keys = keys_of(chunk);
    if (chunk.rows == 0) return;
    const size_t id = ids_[sequence * capacity_ + pages_of(chunk) - 1];
    for (uint32_t token = (keys - 1) % kPageTokens + 1; token < kPageTokens; ++token) {
      for (uint32_t tile = 0; tile < 2 * heads_.n_kv_head; ++tile) {
        tiles_.spoil(id * heads_.n_kv_head * 2 + tile, token);
      }
    }
  }
  // K (which = 0) or V (1) of a sequence [keys, head_dim]; zero where no row sees the page.
  std::vector<double> unpack(size_t sequence, uint32_t kv_head, uint32_t which) const {
    const uint32_t dim = heads_.head_dim, keys = pages_of(chunks_[sequence]) * kPageTokens;
    std::vector<double> values(size_t{keys} * dim);
    for (uint32_t key = 0; key < keys; ++key) {
      const uint32_t id = ids_[sequence * capacity_ + key / kPageTokens];
      if (id == kNoPage) continue;
      const size_t tile = (size_t{id} * heads_.n_kv_head + kv_head) * 2 + which;
      for (uint32_t d = 0; d < dim; ++d) {
        values[size_t{key} * dim + d] = tiles_.value(tile, key % kPageTokens, d);
      }
    }
    return values;
  }

  void check_row(int32_t position, size_t at, const std::vector<double>& k,
                 const std::vector<double>& v, const float* out, float lse, float scale) const {
    const uint32_t dim = heads_.head_dim;
    std::vector<double> q(dim), sum(dim, 0.0);
    for (uint32_t d = 0; d < dim; ++d) q[d] = to_float(Bf16{q_[at * dim + d]});
    double total = 0.0, magnitude = 0.0;
    for (int32_t key = first_key(position); key < end_key(position); ++key) {
      const size_t first = static_cast<size_t>(key) * dim;
      double logit = 0.0;
      for (uint32_t d = 0; d < dim; ++d) logit += q[d] * k[first + d];
      logit *= scale;
      if (options_.soft_cap > 0) logit = options_.soft_cap * std::tanh(logit / options_.soft_cap);
      const double weight = std::exp(logit);
      total += weight;
      for (uint32_t d = 0; d < dim; ++d) {
        sum[d] += weight * v[first + d];
        magnitude = std::max(magnitude, std::fabs(v[first + d]));
      }
    }
    // Weights are rounded to bf16, by 2^-8 of each at most, or to f16; and so is the result.
    for (uint32_t d = 0; d < dim; ++d) {
      const double want = sum[d] / total;
      ASSERT_NEAR(out[d], want, 0x1p-8 * (magnitude + std::fabs(want))) << d;
    }
    ASSERT_NEAR(lse, std::log(total), 0x1p-10);
  }

  Heads heads_;
  Options options_;
  std::mt19937 random_;
  std::vector<Chunk> chunks_;
  std::vector<PrefillRows> sequences_;
  std::vector<int32_t> positions_;  // [rows]
  uint32_t rows_ = 0, capacity_ = 1;
  TestTiles tiles_;
  std::vector<uint16_t> q_;
  std::vector<uint32_t> ids_;
};

class PagedPrefill : public testing::TestWithParam<Heads> {};
INSTANTIATE_TEST_SUITE_P(Heads, PagedPrefill, testing::ValuesIn(kHeads), [](const auto& test) {
  const Heads& heads = test.param;
  return std::to_string(heads.n_head) + "_" + std::to_string(heads.n_kv_head) + "_" +
         std::to_string(heads.head_dim);
});

TEST_P(PagedPrefill, EqualsDoublePrecision) {
  REPRISE_NEEDS_DEVICE();
  Options capped, half, wide, window, narrow_window, fp8, fp8_window;
  capped.soft_cap = 5.0f;
  half.type = KvType::kF16;
  wide.f32_out = true;
  window.window = 100;
  narrow_window.window = 1;
  fp8.type = fp8_window.type = KvType::kFP8;
  fp8_window.window = 100;
  fp8_window.soft_cap = 5.0f;
  fp8_window.v_power = -60.0f;
  const std::vector<std::vector<Chunk>> batches = {
      {{0, 1}},
      {{0, 16}, {0, 15}, {0, 17}},
      {{0, 127}, {0, 0}, {5, 64}},
      {{300, 65}, {1023, 1}, {128, 128}, {127, 2}},
      {{0, 300}},
  };
  unsigned seed = 0;
  for (const auto& batch : batches) {
    for (const Options& options :
         {Options(), capped, half, wide, window, narrow_window, fp8, fp8_window}) {
      Case(GetParam(), batch, options, ++seed).run_and_check();
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(PagedPrefill, RowsSeeKeysThatArePast) {
  REPRISE_NEEDS_DEVICE();
  unsigned seed = 300;
  for (const int32_t align : {1, 16, 24}) {
    for (const KvType type : {KvType::kBF16, KvType::kFP8}) {
      Options options;
      options.type = type;
      options.f32_out = true;
      options.first = 20;
      options.lag = 37;
      options.align = align;
      Case(GetParam(), {{100, 1}, {84, 130}, {300, 65}}, options, ++seed).run_and_check();
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(PagedPrefill, RowsNeedNotBeNeighbours) {
  REPRISE_NEEDS_DEVICE();
  unsigned seed = 400;
  for (const KvType type : {KvType::kBF16, KvType::kF16, KvType::kFP8}) {
    for (const int32_t window : {0, 100}) {
      Options options;
      options.type = type;
      options.step = 7;
      options.window = window;
      Case(GetParam(), {{0, 130}, {84, 1}, {300, 0}, {33, 65}}, options, ++seed).run_and_check();
      if (HasFatalFailure()) return;
    }
  }
}

// Few rows over many keys, which blocks share; some sequences have fewer blocks of keys than parts.
TEST_P(PagedPrefill, FewRowsShareTheirKeysOut) {
  REPRISE_NEEDS_DEVICE();
  Options capped, wide, window, long_window, past, apart, half, fp8, fp8_wide, among;
  capped.soft_cap = 5.0f;
  wide.f32_out = fp8_wide.f32_out = true;
  window.window = 100;
  long_window.window = 1500;
  past.first = 20;
  past.lag = 37;
  past.align = 24;
  apart.step = 7;
  half.type = KvType::kF16;
  fp8.type = fp8_wide.type = KvType::kFP8;
  fp8.window = 1500;
  among.other_rows = 70;
  const std::vector<std::vector<Chunk>> batches = {{{3000, 3}},
                                                   {{2900, 20}, {700, 2}, {90, 1}, {100, 0}}};
  unsigned seed = 500;
  for (const auto& batch : batches) {
    for (const Options& options :
         {Options(), capped, wide, window, long_window, past, apart, half, fp8, fp8_wide, among}) {
      Case(GetParam(), batch, options, ++seed).run_and_check();
      if (HasFatalFailure()) return;
    }
  }
}

// More tiles than multiprocessors: blocks take several, of different sequences.
TEST_P(PagedPrefill, ManySequences) {
  REPRISE_NEEDS_DEVICE();
  std::vector<Chunk> batch;
  for (int32_t i = 0; i < 200; ++i) batch.push_back({i * 37 % 211, static_cast<uint32_t>(i % 5)});
  Options fp8;
  fp8.type = KvType::kFP8;
  for (const Options& options : {Options(), fp8}) {
    Case(GetParam(), batch, options, 99).run_and_check();
  }
}

// 65 MB of KV, more than the L2 cache keeps: KV heads are computed one after the other.
TEST(PagedPrefillArgs, HeadsOfLongContextsTakeTurns) {
  REPRISE_NEEDS_DEVICE();
  Case({16, 16, 128}, {{7900, 130}, {0, 100}, {7900, 1}}, Options(), 7).run_and_check();
}

TEST(PagedPrefillArgs, WhatIsNotServedIsSaid) {
  REPRISE_NEEDS_DEVICE();
  PagedPrefillArgs args;
  args.batch = 1;
  args.rows = 1;
  args.n_head = 4;
  args.kv.n_kv_head = 4;
  args.kv.head_dim = 80;
  EXPECT_EQ(paged_prefill(args, nullptr), cudaErrorNotSupported);
  args.kv.head_dim = 64;
  args.n_head = 4 * 17;
  EXPECT_EQ(paged_prefill(args, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace reprise::kernels::cuda
