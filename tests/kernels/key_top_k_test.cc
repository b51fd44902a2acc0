// The k best keys of every instruction set and page type against a sort of all scores.
#include "kernels/key_top_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

#include "kernels/attention_case.h"

namespace reprise::kernels {
namespace {

using Lists = std::vector<RankedKey>;  // [rows, k]

class KeyTopK : public IsaTest<std::tuple<Isa, KvType, Phase>> {
 protected:
  void SetUp() override {
    IsaTest::SetUp();
    options_.type = std::get<1>(GetParam());
    options_.holes = true;
  }

  Phase phase() const { return std::get<2>(GetParam()); }
  bool stored(size_t head_dim) const { return suits(options_.type, head_dim); }

  CaseOptions options_;
};

Lists find(const AttentionCase& problem, Phase phase, std::span<const PageSpan> pages, size_t k,
           size_t first = 0, size_t rows = 0) {
  KeyTopKArgs args;
  args.layout = &problem.layout;
  args.phase = phase;
  args.rows = rows > 0 ? rows : problem.options.rows;
  args.q = problem.q.data() + first * problem.options.head_dim;
  args.q_stride = problem.options.head_dim;
  args.pages = pages;
  args.k = k;
  Lists best(args.rows * k);
  args.best = best.data();
  std::vector<std::byte> scratch(key_top_k_scratch_bytes(args));
  key_top_k(args, scratch.data());
  return best;
}

/// No key that was left out is better than one that was found, up to the rounding of scores.
void expect_best(const AttentionCase& problem, std::span<const PageSpan> pages, size_t k,
                 const Lists& got) {
  const bool rounded =
      problem.options.type == KvType::kQ8_0;  // AMX rounds scaled values; q is exact in bf16
  const double unit = rounded ? 0x1p-8 : (problem.options.head_dim + 8.0) * 0x1p-24;
  for (size_t row = 0; row < problem.options.rows; ++row) {
    const RankedKey* list = &got[row * k];
    std::vector<int32_t> found;
    double least = INFINITY, error = 0;
    size_t readable = 0;
    std::vector<std::pair<int32_t, double>> scores;
    for (const PageSpan& page : pages) {
      for (size_t slot = 0; slot < kPageTokens; ++slot) {
        if ((page.slots >> slot & 1) == 0) continue;
        ++readable;
        const Dot dot = key_dot(problem, row, page, slot);
        scores.emplace_back(page.index + static_cast<int32_t>(slot), dot.sum);
        error = std::max(error, dot.magnitude * unit);
      }
    }
    for (size_t i = 0; i < k; ++i) {
      if (i >= readable) {
        ASSERT_EQ(list[i].key, -1) << describe(problem.options);
        continue;
      }
      const auto score = std::find_if(scores.begin(), scores.end(),
                                      [&](const auto& s) { return s.first == list[i].key; });
      ASSERT_NE(score, scores.end()) << list[i].key << " " << describe(problem.options);
      ASSERT_NEAR(list[i].score, score->second, error);
      least = std::min(least, score->second);
      found.push_back(list[i].key);
      ASSERT_TRUE(i == 0 || ranks_before(list[i - 1], list[i]));
    }
    for (const auto& [key, score] : scores) {
      const bool is_found = std::find(found.begin(), found.end(), key) != found.end();
      ASSERT_TRUE(is_found || score <= least + 2 * error)
          << key << " " << describe(problem.options);
    }
  }
}

/// Pages whose unreadable slots are all absent: garbage of the case is never a key.
std::vector<PageSpan> readable_pages(const AttentionCase& problem) {
  std::vector<PageSpan> pages;
  for (PageSpan page : problem.pages) {
    const auto left = static_cast<int32_t>(problem.options.keys) - page.index;
    if (left < 16) page.slots &= static_cast<uint16_t>((1u << std::max(left, 0)) - 1);
    page.cos_sin = nullptr;
    pages.push_back(page);
  }
  return pages;
}

TEST_P(KeyTopK, FindsTheBestOfAllScores) {
  std::mt19937 random(3);
  for (const size_t head_dim : {2, 32, 64, 72, 80, 96, 128, 256}) {
    if (!stored(head_dim)) continue;
    for (const size_t rows : {1, 3, 16, 33, 70}) {
      options_.head_dim = head_dim;
      options_.rows = rows;
      options_.keys = 1 + random() % 400;
      options_.seed += 1;
      const AttentionCase problem(options_);
      const auto pages = readable_pages(problem);
      for (const size_t k : {1, 4, 17}) {
        expect_best(problem, pages, k, find(problem, phase(), pages, k));
      }
    }
  }
}

/// Writes the same key, times a factor of its index, into every slot.
template <class Factor>
void set_keys(AttentionCase& problem, Factor factor) {
  const size_t dim = problem.options.head_dim;
  for (const PageSpan& page : problem.pages) {
    // The case owns the memory.
    auto* tile = const_cast<std::byte*>(page.k);
    for (size_t slot = 0; slot < kPageTokens; ++slot) {
      std::vector<float> both(2 * dim * problem.layout.n_kv_head);
      const auto index = static_cast<size_t>(page.index) + slot;
      for (size_t d = 0; d < dim; ++d) {
        both[dim + d] = static_cast<float>(factor(index)) * (d % 2 ? 0.5f : -0.25f);
      }
      std::byte* start = tile - problem.layout.k_offset(1);
      store_token(problem.layout, start, slot, both.data(), both.data());
    }
  }
}

std::vector<int32_t> keys_of(const Lists& lists, size_t row, size_t k) {
  std::vector<int32_t> keys;
  for (size_t i = 0; i < k; ++i) keys.push_back(lists[row * k + i].key);
  return keys;
}

TEST_P(KeyTopK, TiesGoToTheLaterKeyWhateverTheOrderOfScores) {
  options_.holes = false;
  options_.head_dim = 64;
  options_.rows = 35;
  options_.keys = 700;
  AttentionCase problem(options_);
  for (size_t i = 0; i < problem.q.size(); ++i) problem.q[i] = i % 2 ? 1.0f : -1.0f;
  const auto pages = readable_pages(problem);
  const auto expect = [&](size_t k, const std::vector<int32_t>& want) {
    const Lists got = find(problem, phase(), pages, k);
    for (size_t row = 0; row < options_.rows; ++row) EXPECT_EQ(keys_of(got, row, k), want);
  };
  set_keys(problem, [](size_t) { return 1; });  // all equal
  expect(5, {699, 698, 697, 696, 695});
  set_keys(problem,
           [](size_t i) { return 1024 - static_cast<int>(i / 8) * 8; });  // eights, falling
  expect(5, {7, 6, 5, 4, 3});
  set_keys(problem, [](size_t i) { return static_cast<int>(i / 8) * 8; });  // eights, rising
  expect(5, {699, 698, 697, 696, 695});
  set_keys(problem, [](size_t i) { return i >= 64 && i < 80 ? 2 : 1; });  // all in one page
  expect(18, {79, 78, 77, 76, 75, 74, 73, 72, 71, 70, 69, 68, 67, 66, 65, 64, 699, 698});
  set_keys(problem, [](size_t i) { return i % 100 == 50 ? 4 : 1; });  // the same word again
  expect(3, {650, 550, 450});
}

TEST_P(KeyTopK, DoesNotDependOnOtherRowsOrOnHowAScanIsSplit) {
  options_.head_dim = 64;
  options_.rows = 40;
  options_.keys = 900;
  const AttentionCase problem(options_);
  const auto pages = readable_pages(problem);
  constexpr size_t kK = 6;
  const Lists whole = find(problem, phase(), pages, kK);
  for (const size_t row : {0, 17, 39}) {
    const Lists alone = find(problem, phase(), pages, kK, row, 1);
    for (const size_t cut : {1, 7, 30}) {
      const auto low = find(problem, phase(), std::span(pages).first(cut), kK, row, 1);
      auto merged = find(problem, phase(), std::span(pages).subspan(cut), kK, row, 1);
      merged.insert(merged.end(), low.begin(), low.end());
      std::sort(merged.begin(), merged.end(), ranks_before);
      for (size_t i = 0; i < kK; ++i) {
        EXPECT_EQ(alone[i].key, whole[row * kK + i].key);
        EXPECT_EQ(alone[i].score, whole[row * kK + i].score);
        EXPECT_EQ(merged[i].key, alone[i].key);
      }
    }
  }
}

TEST_P(KeyTopK, NaNHidesNoOtherKey) {
  constexpr size_t kPages = 8, kDim = 64;
  const KvLayout layout = {options_.type, 1, kDim};
  if (has_scales(layout.type)) GTEST_SKIP() << "stores numbers alone";
  std::vector<std::byte> memory(kPages * layout.page_bytes());
  std::vector<PageSpan> pages(kPages);
  const auto store = [&](size_t page, size_t slot, float value) {
    std::vector<float> k(kDim), v(kDim);
    k[0] = value;
    store_token(layout, &memory[page * layout.page_bytes()], slot, k.data(), v.data());
  };
  for (size_t page = 0; page < kPages; ++page) {
    pages[page].k = &memory[page * layout.page_bytes() + layout.k_offset(0)];
    pages[page].index = static_cast<int32_t>(page * kPageTokens);
    for (size_t slot = 0; slot < kPageTokens; ++slot) store(page, slot, 1.0f);
  }
  store(0, 3, 100.0f);
  store(7, 0, 50.0f);
  std::vector<float> q(kDim);
  q[0] = 1.0f;
  RankedKey best;
  KeyTopKArgs args;
  args.layout = &layout;
  args.phase = phase();
  args.rows = 1;
  args.q = q.data();
  args.q_stride = kDim;
  args.pages = pages;
  args.k = 1;
  args.best = &best;
  std::vector<std::byte> scratch(key_top_k_scratch_bytes(args));
  for (const size_t page : {0, 1, 2, 3}) {
    if (page > 0) store(page, 3, NAN);
    key_top_k(args, scratch.data());
    EXPECT_EQ(best.key, 3) << page;
  }
}

TEST_P(KeyTopK, FewerKeysThanWantedLeaveEmptyPlaces) {
  options_.keys = 3;
  options_.holes = false;
  options_.rows = 2;
  const AttentionCase problem(options_);
  const auto pages = readable_pages(problem);
  for (const auto& list : {find(problem, phase(), pages, 5), find(problem, phase(), {}, 5)}) {
    EXPECT_EQ(list[3].key, -1);
    EXPECT_EQ(list[9].key, -1);
  }
}

INSTANTIATE_TEST_SUITE_P(All, KeyTopK,
                         testing::Combine(testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512,
                                                          Isa::kAmx),
                                          testing::ValuesIn(kKvTypes),
                                          testing::Values(Phase::kDecode, Phase::kPrefill)));

}  // namespace
}  // namespace reprise::kernels
