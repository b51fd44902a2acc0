#include "kernels/cuda/paged_decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "cuda/page_testing.h"
#include "kernels/cuda/heads.h"
#include "kernels/matmul_case.h"

namespace reprise::kernels::cuda {
namespace {

struct Heads {
  uint32_t n_head, n_kv_head, head_dim;
};
constexpr Heads kHeads[] = {{32, 8, 128}, {9, 3, 64},   {16, 1, 128}, {8, 8, 64},
                            {32, 8, 96},  {16, 4, 256}, {16, 1, 256}, {12, 1, 64},
                            {10, 2, 128}, {16, 1, 96},  {2, 2, 256}};

struct Options {
  KvType type = KvType::kBF16;
  bool list_per_head = false, some_slots = false, rows = false, rotates = false;
  float soft_cap = 0.0f, v_power = 0.0f;
  uint32_t capped_pages = 0;
};

// A call with random contents, and what double precision makes of the same pages.
class Case {
 public:
  Case(const Heads& heads, std::vector<int32_t> lengths, const Options& options, unsigned seed)
      : heads_(heads),
        options_(options),
        batch_(static_cast<uint32_t>(lengths.size())),
        random_(seed),
        tiles_(options.type, heads.head_dim, 0) {
    lists_ = options.list_per_head ? heads.n_kv_head : 1;
    const int32_t longest = std::max(1, *std::max_element(lengths.begin(), lengths.end()));
    capacity_ = (static_cast<uint32_t>(longest) + kPageTokens - 1) / kPageTokens;
    for (const int32_t length : lengths) {
      for (uint32_t list = 0; list < lists_; ++list) {
        keys_.push_back(std::max(0, length - 37 * static_cast<int32_t>(list)));
      }
    }
    const size_t entries = size_t{batch_} * lists_ * capacity_;
    pages_.resize(entries);
    std::iota(pages_.begin(), pages_.end(), 1u);  // page 0 is nobody's
    std::shuffle(pages_.begin(), pages_.end(), random_);
    slots_.assign(entries, 0xffff);
    if (options.some_slots) {
      for (uint16_t& slots : slots_) slots = static_cast<uint16_t>(random_());
    }
    tiles_ = TestTiles(options.type, heads.head_dim, (entries + 1) * heads.n_kv_head * 2);
    tiles_.fill(random_, options.v_power);
    spoil_unread();
    rows_.resize(batch_);
    std::iota(rows_.begin(), rows_.end(), 0u);
    if (options.rows) std::shuffle(rows_.begin(), rows_.end(), random_);
    q_.resize(size_t{batch_} * heads.n_head * heads.head_dim);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    for (uint16_t& value : q_) value = to_bf16(normal(random_)).bits;
    q_capped_ = q_;
    std::shuffle(q_capped_.begin(), q_capped_.end(), random_);
    pairs_ = options.rotates ? heads.head_dim / (seed % 2 + 2) : 0;
  }

  void run_and_check() {
    const DeviceArray<uint8_t> kv(tiles_.bytes());
    const DeviceArray<float> q(bf16_floats(q_)), q_capped(bf16_floats(q_capped_));
    const DeviceArray<uint16_t> slots(slots_);
    const DeviceArray<uint32_t> pages(pages_), which(rows_);
    const DeviceArray<int32_t> keys(keys_);
    const size_t rows = size_t{batch_} * heads_.n_head;
    const DeviceArray<float> out(rows * heads_.head_dim, 0xff), lse(rows, 0xff);
    const DeviceArray<char> workspace(
        paged_decode_workspace(batch_, heads_.n_head, heads_.n_kv_head, heads_.head_dim));
    PagedDecodeArgs args;
    args.kv = {kv.get(), options_.type, heads_.n_kv_head, heads_.head_dim};
    args.lists = {pages.get(), options_.some_slots ? slots.get() : nullptr, keys.get(), lists_,
                  capacity_,   options_.rows ? which.get() : nullptr};
    args.batch = batch_;
    args.n_head = heads_.n_head;
    args.q = q.get();
    args.q_capped = q_capped.get();
    args.capped_pages = options_.capped_pages;
    args.scale = 1.0f / std::sqrt(static_cast<float>(heads_.head_dim));
    args.soft_cap = options_.soft_cap;
    const DeviceArray<float> of_pages(angles(capacity_, kPageTokens, kFactor)),
        of_tokens(angles(kPageTokens, 1, 1.0));
    if (options_.rotates) args.angles = {of_pages.get(), of_tokens.get(), pairs_};
    args.out = out.get();
    args.lse = lse.get();
    args.workspace = workspace.get();
    std::vector<float> logs[2];
    for (const bool known : {false, true}) {  // the workspace serves again
      const DeviceArray<float> own_logs(rows * capacity_, 0xff);
      args.known_pages = args.page_peaks = known;
      args.page_logs = own_logs.get();
      ASSERT_EQ(paged_decode(args, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      logs[known] = own_logs.host();
    }
    const std::vector<float> outs = out.host(), lses = lse.host();
    for (size_t row = 0; row < rows; ++row) {
      const size_t first = row * capacity_;
      check_row(row, &outs[row * heads_.head_dim], lses[row], &logs[0][first], &logs[1][first],
                args.scale);
    }
  }

 private:
  static constexpr double kFactor = 1.25;

  double angle(int32_t position, uint32_t pair) const {
    return position * std::pow(500.0, -static_cast<double>(pair) / pairs_);
  }
  // [count][pairs][2] of positions step * i.
  std::vector<float> angles(uint32_t count, uint32_t step, double factor) const {
    std::vector<float> table;
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t pair = 0; pair < pairs_; ++pair) {
        const double turn = angle(static_cast<int32_t>(step * i), pair);
        table.push_back(static_cast<float>(std::cos(turn) * factor));
        table.push_back(static_cast<float>(std::sin(turn) * factor));
      }
    }
    return table;
  }
  // Of the key that stands at a position of its list.
  double key_value(size_t tile, int32_t position, uint32_t dim) const {
    const uint32_t token = static_cast<uint32_t>(position) % kPageTokens;
    const double own = tiles_.value(tile, token, dim);
    if (dim / 2 >= pairs_) return own;
    const double other = tiles_.value(tile, token, dim ^ 1), turn = angle(position, dim / 2);
    return kFactor * (own * std::cos(turn) + (dim % 2 == 0 ? -other : other) * std::sin(turn));
  }

  bool is_read(size_t list, int32_t key) const {
    const auto nth = static_cast<uint32_t>(key);
    const uint16_t slots = slots_[list * capacity_ + nth / kPageTokens];
    return key < keys_[list] && (slots >> nth % kPageTokens & 1) != 0;
  }
  // The K tile of the page of a key.
  size_t tile_of(size_t list, int32_t key, uint32_t kv_head) const {
    const size_t entry = list * capacity_ + static_cast<uint32_t>(key) / kPageTokens;
    return (size_t{pages_[entry]} * heads_.n_kv_head + kv_head) * 2;
  }

  void spoil_unread() {
    for (size_t list = 0; list < keys_.size(); ++list) {
      for (int32_t key = 0; key < static_cast<int32_t>(capacity_ * kPageTokens); ++key) {
        if (is_read(list, key)) continue;
        for (uint32_t tile = 0; tile < 2 * heads_.n_kv_head; ++tile) {
          tiles_.spoil(tile_of(list, key, 0) + tile, static_cast<uint32_t>(key) % kPageTokens);
        }
      }
    }
  }

  // sums, peaks: [capacity] what is told of pages.
  void check_row(size_t row, const float* out, float lse, const float* sums, const float* peaks,
                 float scale) const {
    const uint32_t dim = heads_.head_dim, head = static_cast<uint32_t>(row) % heads_.n_head;
    const uint32_t kv_head = head / (heads_.n_head / heads_.n_kv_head);
    const size_t list = rows_[row / heads_.n_head] * lists_ + (lists_ > 1 ? kv_head : 0);
    std::vector<double> sum(dim, 0.0);
    double total = 0.0, magnitude = 0.0, error = 0.0;
    std::vector<double> of_pages(capacity_), largest(capacity_);  // of weights
    for (int32_t key = 0; key < keys_[list]; ++key) {
      if (!is_read(list, key)) continue;
      const uint32_t token = static_cast<uint32_t>(key) % kPageTokens;
      const size_t tile = tile_of(list, key, kv_head);
      const bool capped = static_cast<uint32_t>(key) / kPageTokens < options_.capped_pages;
      const auto& q = capped ? q_capped_ : q_;
      double logit = 0.0, squares = 0.0;
      for (uint32_t d = 0; d < dim; ++d) {
        const double product = to_float(Bf16{q[row * dim + d]}) * key_value(tile, key, d);
        logit += product;
        squares += product * product;
      }
      logit *= scale;
      if (pairs_ > 0) error = std::max(error, kDeviations * rounding() * scale * sqrt(squares));
      if (options_.soft_cap > 0) logit = options_.soft_cap * std::tanh(logit / options_.soft_cap);
      const double weight = std::exp(logit);
      total += weight;
      const size_t page = static_cast<uint32_t>(key) / kPageTokens;
      of_pages[page] += weight;
      largest[page] = std::max(largest[page], weight);
      for (uint32_t d = 0; d < dim; ++d) {
        const double value = tiles_.value(tile + 1, token, d);
        sum[d] += weight * value;
        magnitude = std::max(magnitude, std::fabs(value));
      }
    }
    const double log_error = 0x1p-10 + error;
    for (size_t page = 0; page < capacity_; ++page) {
      if (static_cast<int32_t>(page * kPageTokens) >= keys_[list]) {
        ASSERT_TRUE(std::isnan(sums[page]) && std::isnan(peaks[page])) << row << ' ' << page;
        continue;
      }
      ASSERT_TRUE(is_log(sums[page], of_pages[page], log_error)) << row << ' ' << page;
      ASSERT_TRUE(is_log(peaks[page], largest[page], log_error)) << row << ' ' << page;
    }
    if (total == 0.0) {
      EXPECT_EQ(lse, -std::numeric_limits<float>::infinity());
      for (uint32_t d = 0; d < dim; ++d) ASSERT_EQ(out[d], 0.0f);
      return;
    }
    // Weights are rounded to bf16, by 2^-8 of each at most, or to f16, and have errors of logits.
    const double tolerance = (0x1p-8 + 2 * std::expm1(error)) * magnitude;
    for (uint32_t d = 0; d < dim; ++d) ASSERT_NEAR(out[d], sum[d] / total, tolerance) << row;
    ASSERT_NEAR(lse, std::log(total), log_error) << row;
  }

  // log2 of a number that is known up to a natural logarithm's error.
  static bool is_log(float log, double of, double error) {
    if (of == 0.0) return log == -std::numeric_limits<float>::infinity();
    return std::fabs(log - std::log2(of)) <= error / std::log(2.0);
  }

  // Keys that are rotated are rounded again; logits have so many deviations of that.
  static constexpr double kDeviations = 6.0;
  double rounding() const {
    return (options_.type == KvType::kBF16 ? 0x1p-8 : 0x1p-11) / std::sqrt(3.0);
  }

  Heads heads_;
  Options options_;
  uint32_t batch_, lists_ = 1, capacity_ = 0, pairs_ = 0;
  std::mt19937 random_;
  TestTiles tiles_;
  std::vector<uint16_t> q_, q_capped_, slots_;
  std::vector<uint32_t> pages_, rows_;
  std::vector<int32_t> keys_;
};

class PagedDecode : public testing::TestWithParam<Heads> {};
INSTANTIATE_TEST_SUITE_P(Heads, PagedDecode, testing::ValuesIn(kHeads), [](const auto& test) {
  const Heads& heads = test.param;
  return std::to_string(heads.n_head) + "_" + std::to_string(heads.n_kv_head) + "_" +
         std::to_string(heads.head_dim);
});

TEST_P(PagedDecode, EqualsDoublePrecision) {
  REPRISE_NEEDS_DEVICE();
  Options per_head, masked, capped, half, fp8, fp8_masked, turned;
  per_head.list_per_head = true;
  masked.some_slots = true;
  capped.soft_cap = 5.0f;
  half.type = KvType::kF16;
  fp8.type = fp8_masked.type = KvType::kFP8;
  fp8_masked.some_slots = fp8_masked.rows = true;
  fp8_masked.v_power = -60.0f;
  turned.capped_pages = 19;
  turned.some_slots = true;
  const std::vector<std::vector<int32_t>> lengths = {
      {1}, {16}, {17, 0, 1500}, {2500}, {0}, {15, 16, 17, 31, 32, 33, 1000, 700}};
  unsigned seed = 0;
  for (const auto& list : lengths) {
    for (const Options& options :
         {Options(), per_head, masked, capped, half, fp8, fp8_masked, turned}) {
      Case(GetParam(), list, options, ++seed).run_and_check();
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(PagedDecode, RotatesPositionFreeKeys) {
  REPRISE_NEEDS_DEVICE();
  unsigned seed = 40;
  for (const KvType type : {KvType::kBF16, KvType::kF16, KvType::kFP8}) {
    for (const bool list_per_head : {false, true}) {
      Options options;
      options.type = type;
      options.rotates = true;
      options.list_per_head = options.some_slots = list_per_head;
      for (const auto& lengths : {std::vector<int32_t>{1}, {17, 0, 1500}, {2500}}) {
        Case(GetParam(), lengths, options, ++seed).run_and_check();
        if (HasFatalFailure()) return;
      }
      Case(GetParam(), std::vector<int32_t>(150, 70), options, ++seed).run_and_check();
    }
  }
}

// More pairs than multiprocessors: blocks share all pages, and end in the midst of pairs.
TEST_P(PagedDecode, ManySequencesShareBlocks) {
  REPRISE_NEEDS_DEVICE();
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 150; ++i) lengths.push_back(i * 37 % 211);
  Options indirect, fp8, turned;
  indirect.rows = true;
  fp8.type = KvType::kFP8;
  turned.capped_pages = 3;
  for (const Options& options : {indirect, fp8, turned}) {
    Case(GetParam(), lengths, options, 99).run_and_check();
  }
}

// Fewer pages than blocks.
TEST_P(PagedDecode, ManySequencesAreEmpty) {
  REPRISE_NEEDS_DEVICE();
  std::vector<int32_t> lengths(300, 0);
  lengths[7] = 100;
  lengths[200] = 17;
  Case(GetParam(), lengths, Options(), 98).run_and_check();
}

// Every call reads what rotate_and_store() ahead of it writes, in its list's last page.
TEST(PagedDecodeOverlap, KnownPagesAreFetchedBesideTheKernelAhead) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kQHeads = 8, kKvHeads = 2, kDim = 128, kTokens = 200, kCapacity = 13;
  constexpr size_t kRow = size_t{kQHeads} * kDim;
  const DeviceArray<float> rows(random_values(kTokens * kRow, 1));
  const DeviceArray<float> angles(random_values(kDim, 2));
  std::vector<int32_t> counts(kTokens + 1);
  std::iota(counts.begin(), counts.end(), 0);
  const DeviceArray<int32_t> numbers(counts);
  std::vector<uint32_t> order(kCapacity);
  std::iota(order.rbegin(), order.rend(), 0u);
  const DeviceArray<uint32_t> table(order), sequence(std::vector<uint32_t>{0});
  const DeviceArray<char> workspace(paged_decode_workspace(1, kQHeads, kKvHeads, kDim));
  std::vector<float> results[2];
  for (const bool known : {false, true}) {
    const DeviceArray<uint8_t> kv(
        std::vector<uint8_t>(size_t{kCapacity} * kKvHeads * 2 * tile_bytes(KvType::kBF16, kDim)));
    const DeviceArray<float> q(kRow), out(kTokens * kRow, 0xff), lse(kQHeads);
    for (uint32_t token = 0; token < kTokens; ++token) {
      HeadsArgs heads;
      heads.q = heads.k = heads.v = rows.get() + token * kRow;
      heads.rows = heads.exact_rows = 1;
      heads.n_head = kQHeads;
      heads.pairs = kDim / 2;
      heads.cos_sin = angles.get();
      heads.positions = numbers.get() + token;
      heads.kv = {kv.get(), KvType::kBF16, kKvHeads, kDim};
      heads.pages = table.get();
      heads.sequences = sequence.get();
      heads.capacity = kCapacity;
      heads.q_rotated.exact = q.get();
      ASSERT_EQ(rotate_and_store(heads, nullptr), cudaSuccess);
      PagedDecodeArgs args;
      args.kv = heads.kv;
      args.lists = {table.get(), nullptr, numbers.get() + token + 1, 1, kCapacity};
      args.batch = 1;
      args.n_head = kQHeads;
      args.q = q.get();
      args.scale = 0.05f;
      args.out = out.get() + token * kRow;
      args.lse = lse.get();
      args.workspace = workspace.get();
      args.known_pages = known;
      ASSERT_EQ(paged_decode(args, nullptr), cudaSuccess);
      if (known) continue;
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    results[known] = out.host();
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(PagedDecodeArgs, WhatIsNotServedIsSaid) {
  REPRISE_NEEDS_DEVICE();
  PagedDecodeArgs args;
  args.batch = 1;
  args.n_head = 4;
  args.kv.n_kv_head = 4;
  args.kv.head_dim = 80;
  EXPECT_EQ(paged_decode(args, nullptr), cudaErrorNotSupported);
  args.kv.head_dim = 64;
  args.n_head = 4 * 17;
  EXPECT_EQ(paged_decode(args, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace reprise::kernels::cuda
