// What a row's result may and may not depend on, and the algebra of partial results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/attention_case.h"
#include "kernels/key_tile.h"
#include "kernels/ops.h"

namespace reprise::kernels {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

bool same_bits(const float* a, const float* b, size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}

// Runs body for every instruction set of this machine, page type and phase.
template <typename Body>
void for_all_kernels(Body body) {
  for (const Isa isa : machine_isas()) {
    const IsaScope scope(isa);
    for (const KvType type : kKvTypes) {
      for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
        CaseOptions options;
        options.type = type;
        options.phase = phase;
        body(options);
      }
    }
  }
}

void expect_nothing(const AttentionCase& problem) {
  const AttendResult result = problem.attend_all();
  for (const float lse : result.lse) EXPECT_EQ(lse, kNothing) << describe(problem.options);
  for (const float x : result.out) EXPECT_EQ(x, 0.0f) << describe(problem.options);
}

// Two pages of both, whose numbers bf12 holds whole, for three rows.
TEST(AttentionRows, PagesOfBf12AreThoseOfBf16) {
  constexpr uint32_t kDim = 96;
  constexpr size_t kKeys = 2 * kPageTokens, kRows = 3;
  std::mt19937 random(4);
  std::uniform_real_distribution<float> magnitude(0x1p-6f, 8.0f);
  std::vector<float> q(kRows * kDim), k(kKeys * kDim), v(k.size());
  for (std::vector<float>* all : {&q, &k, &v}) {
    for (float& x : *all) x = (random() % 2 == 0 ? -1.0f : 1.0f) * magnitude(random);
  }
  const auto attended = [&](KvType type, Phase phase) {
    const KvLayout layout = {type, 1, kDim};
    std::vector<std::byte> pages(2 * layout.page_bytes());
    std::vector<PageSpan> spans(2);
    for (size_t p = 0; p < 2; ++p) {
      std::byte* page = &pages[p * layout.page_bytes()];
      const size_t first = p * kPageTokens * kDim;
      store_tokens(layout, page, 0, kPageTokens, &k[first], &v[first]);
      spans[p].k = page + layout.k_offset(0);
      spans[p].v = page + layout.v_offset(0);
      spans[p].index = static_cast<int32_t>(p * kPageTokens);
    }
    const std::vector<int32_t> begin(kRows, 0), end(kRows, 29);
    AttendArgs args;
    args.layout = &layout;
    args.phase = phase;
    args.rows = kRows;
    args.q = q.data();
    args.q_stride = args.out_stride = kDim;
    args.row_begin = begin.data();
    args.row_end = end.data();
    args.pages = spans;
    args.scale = 0.02f;
    std::vector<float> out(kRows * kDim + kRows);
    args.out = out.data();
    args.lse = &out[kRows * kDim];
    std::vector<std::byte> scratch(attend_scratch_bytes(args));
    attend(args, scratch.data());
    return out;
  };
  for (const Isa isa : machine_isas()) {
    const IsaScope scope(isa);
    if (isa == Isa::kAmx) continue;  // whose decode has kernels of its own for bf16
    for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
      EXPECT_EQ(attended(KvType::kBF12, phase), attended(KvType::kBF16, phase)) << isa_name(isa);
    }
  }
}

TEST(AttentionRows, ResultDoesNotDependOnTheOtherRows) {
  for_all_kernels([](CaseOptions options) {
    options.rows = 75;
    options.heads_per_row = 2;
    options.keys = 400;
    options.window = 210;
    options.holes = true;
    options.bias = 3.0f;
    const AttentionCase problem(options);
    const AttendResult all = problem.attend_all();
    for (const size_t count : {1, 2, 3, 5, 16, 40}) {
      for (size_t first = 0; first + count <= options.rows; first += 7 + count) {
        const AttendResult some = problem.attend_rows(first, count);
        EXPECT_TRUE(
            same_bits(some.out.data(), &all.out[first * options.head_dim], some.out.size()) &&
            same_bits(some.lse.data(), &all.lse[first], count))
            << "rows " << first << " + " << count << " of " << describe(options);
      }
    }
  });
}

TEST(AttentionRows, TokensMayLieApart) {
  for_all_kernels([](CaseOptions options) {
    options.rows = 39;
    options.heads_per_row = 3;
    options.keys = 300;
    const AttentionCase problem(options);
    const AttendResult want = problem.attend_all();
    const size_t width = 3 * options.head_dim, stride = 2 * width + 5, tokens = options.rows / 3;
    std::vector<float> q(tokens * stride), out(q.size(), 77.0f);
    AttendResult lse;
    AttendArgs args = problem.args(0, options.rows, lse);
    for (size_t token = 0; token < tokens; ++token) {
      std::copy_n(&problem.q[token * width], width, &q[token * stride]);
    }
    args.heads = 3;
    args.q = q.data();
    args.out = out.data();
    args.q_stride = args.out_stride = stride;
    std::vector<std::byte> scratch(attend_scratch_bytes(args));
    attend(args, scratch.data());
    EXPECT_TRUE(same_bits(lse.lse.data(), want.lse.data(), options.rows)) << describe(options);
    for (size_t token = 0; token < tokens; ++token) {
      EXPECT_TRUE(same_bits(&out[token * stride], &want.out[token * width], width))
          << "token " << token << " of " << describe(options);
      EXPECT_TRUE(std::all_of(&out[token * stride + width], &out[token * stride] + stride,
                              [](float x) { return x == 77.0f; }))
          << "behind token " << token << " of " << describe(options);
    }
  });
}

TEST(AttentionRows, PagesThatARowDoesNotSeeChangeNothing) {
  for_all_kernels([](CaseOptions options) {
    options.rows = 40;
    options.keys = 500;
    options.window = 200;
    options.bias = 3.0f;
    const AttentionCase problem(options);
    const AttendResult all = problem.attend_all();
    for (const size_t row : {0, 13, 39}) {
      AttentionCase pruned = problem;
      const bool decode = options.phase == Phase::kDecode;
      std::erase_if(pruned.pages, [&](const PageSpan& page) {  // decode counts pages from the first
        const bool before = page.index + 16 <= problem.row_begin[row];
        return page.index >= problem.row_end[row] || (before && !decode);
      });
      const AttendResult one = pruned.attend_rows(row, 1);
      EXPECT_TRUE(same_bits(one.out.data(), &all.out[row * options.head_dim], options.head_dim) &&
                  one.lse[0] == all.lse[row])
          << "row " << row << " of " << describe(options);
    }
  });
}

TEST(AttentionPages, WhatIsReadNextChangesNothing) {
  for_all_kernels([](CaseOptions options) {
    for (const size_t keys : {5, 64, 300}) {
      options.keys = keys;
      const AttentionCase problem(options);
      const AttendResult alone = problem.attend_all();
      AttendResult before;
      AttendArgs args = problem.args(0, options.rows, before);
      args.next = std::span(problem.pages).first(std::min<size_t>(3, problem.pages.size()));
      std::vector<std::byte> scratch(attend_scratch_bytes(args));
      attend(args, scratch.data());
      EXPECT_TRUE(same_bits(alone.out.data(), before.out.data(), alone.out.size()) &&
                  same_bits(alone.lse.data(), before.lse.data(), alone.lse.size()))
          << describe(options);
    }
  });
}

// In floats, so that what is stored is not rounded; unread slots are rotated, too.
TEST(AttentionPages, KeysRotatedAtReadAreThoseThatWereRotatedBefore) {
  for_all_kernels([](CaseOptions options) {
    if (options.type != KvType::kF32) return;
    for (const size_t pairs : {5, 32}) {
      options.rope_pairs = pairs;
      const AttentionCase at_read(options);
      AttentionCase before(options);
      std::vector<float> key(options.head_dim);
      for (PageSpan& page : before.pages) {
        std::byte* tile = before.memory.data() + (page.k - before.memory.data());
        for (size_t slot = 0; slot < kPageTokens; ++slot) {
          load_k(before.layout, tile, slot, key.data());
          rope(key.data(), page.cos_sin + slot * pairs * 2, 1, options.head_dim, pairs);
          store_k(before.layout, tile, slot, key.data());
        }
        page.cos_sin = nullptr;
      }
      const AttendResult got = at_read.attend_all(), want = before.attend_all();
      EXPECT_TRUE(same_bits(got.out.data(), want.out.data(), want.out.size()) &&
                  same_bits(got.lse.data(), want.lse.data(), want.lse.size()))
          << describe(options);
    }
  });
}

TEST(AttentionPages, HeadsTogetherAreHeadsAlone) {
  for_all_kernels([](CaseOptions options) {
    for (const size_t rows : {1, 3, 5}) {
      options.rows = rows;
      options.keys = 200;
      options.window = 90;
      options.bias = 3.0f;
      std::vector<AttentionCase> heads;
      heads.reserve(3);  // pages point into the cases
      for (const unsigned seed : {1u, 2u, 3u}) {
        options.seed = seed;
        heads.emplace_back(options);
      }
      std::vector<AttendResult> results(heads.size());
      std::vector<AttendArgs> calls;
      size_t bytes = 0;
      for (size_t i = 0; i < heads.size(); ++i) {
        calls.push_back(heads[i].args(0, rows, results[i]));
        bytes += attend_scratch_bytes(calls[i]);
      }
      std::vector<std::byte> scratch(bytes);
      attend_heads(calls, scratch.data());
      for (size_t i = 0; i < heads.size(); ++i) {
        const AttendResult alone = heads[i].attend_all();
        EXPECT_TRUE(same_bits(alone.out.data(), results[i].out.data(), alone.out.size()) &&
                    same_bits(alone.lse.data(), results[i].lse.data(), alone.lse.size()))
            << "head " << i << " of " << describe(options);
      }
    }
  });
}

TEST(AttentionRows, UnreadSlotsMayHoldAnythingFinite) {
  for_all_kernels([](CaseOptions options) {
    options.rows = 20;
    options.keys = 261;  // the last page is partial; its other slots hold 3e38
    options.holes = true;
    const AttentionCase problem(options);
    expect_close(problem, expected(problem), problem.attend_all());
  });
}

TEST(AttentionRows, EmptyRowsAndEmptyLists) {
  for_all_kernels([](CaseOptions options) {
    options.rows = 6;
    AttentionCase problem(options);
    problem.row_end[1] = 0;
    problem.row_begin[4] = problem.row_end[4] = 100;
    AttendResult result = problem.attend_all();
    for (const size_t row : {1, 4}) {
      EXPECT_EQ(result.lse[row], kNothing) << describe(options);
      for (size_t d = 0; d < options.head_dim; ++d) {
        EXPECT_EQ(result.out[row * options.head_dim + d], 0.0f) << describe(options);
      }
    }
    expect_close(problem, expected(problem), result);
    problem.pages.clear();
    expect_nothing(problem);
  });
}

TEST(AttentionRows, PagesWithNoSlotOrOnlyHiddenSlotsAreEmpty) {
  const std::vector<float> hidden(kPageTokens, kNothing);
  for_all_kernels([&](CaseOptions options) {
    options.rows = 6;
    AttentionCase problem(options);
    for (size_t i = 0; i < problem.pages.size(); ++i) {
      if (i % 2 == 0) problem.pages[i].slots = 0;
      if (i % 2 == 1) problem.pages[i].bias = hidden.data();
    }
    expect_nothing(problem);
    problem.pages[7].bias = nullptr;  // one page among empty ones
    expect_close(problem, expected(problem), problem.attend_all());
  });
}

TEST(AttentionRows, ABiasThatIsTheSameEverywhereOnlyShiftsTheSum) {
  const std::vector<float> same(kPageTokens, 3.5f);
  for_all_kernels([&](CaseOptions options) {
    options.rows = 5;
    AttentionCase problem(options);
    const Expected want = expected(problem);
    for (PageSpan& page : problem.pages) page.bias = same.data();
    AttendResult got = problem.attend_all();
    for (float& lse : got.lse) lse -= same[0];
    expect_close(problem, want, got);
  });
}

TEST(AttentionRows, HugeLogitsStayFinite) {
  for_all_kernels([](CaseOptions options) {
    options.rows = 33;
    options.amplitude = 120.0f;  // logits of 1e4
    const AttentionCase problem(options);
    const Expected want = expected(problem);
    EXPECT_GT(*std::max_element(want.lse.begin(), want.lse.end()), 8e3);
    const AttendResult got = problem.attend_all();
    for (const float x : got.out) ASSERT_LE(std::fabs(x), 6.0f) << describe(options);
    expect_close(problem, want, got);
  });
}

TEST(AttentionPages, AnyCutOfTheListMergesToTheWhole) {
  for_all_kernels([](CaseOptions options) {
    options.rows = 5;
    options.keys = 470;
    AttentionCase problem(options);
    const Expected want = expected(problem);
    const std::vector<PageSpan> pages = problem.pages;
    for (const size_t cut : {0, 1, 7, 16, 29, 30}) {
      problem.pages.assign(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(cut));
      AttendResult left = problem.attend_all();
      problem.pages.assign(pages.begin() + static_cast<std::ptrdiff_t>(cut), pages.end());
      const AttendResult right = problem.attend_all();
      for (size_t row = 0; row < options.rows; ++row) {
        merge_partial(&left.out[row * options.head_dim], &left.lse[row],
                      &right.out[row * options.head_dim], right.lse[row], options.head_dim);
      }
      expect_close(problem, want, left);
    }
  });
}

struct Partial {
  std::vector<float> out;
  float lse;
};

Partial merged(Partial a, const Partial& b) {
  merge_partial(a.out.data(), &a.lse, b.out.data(), b.lse, a.out.size());
  return a;
}

TEST(MergePartial, AssociativeAndCommutativeWithinRounding) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> level(-20.0f, 20.0f);
  const auto make = [&] {
    Partial p = {std::vector<float>(80), level(random)};
    for (float& x : p.out) x = normal(random);
    return p;
  };
  for (int i = 0; i < 200; ++i) {
    const Partial a = make(), b = make(), c = make();
    const Partial ab = merged(a, b), ba = merged(b, a);
    EXPECT_EQ(ab.lse, ba.lse);
    const Partial left = merged(ab, c), right = merged(a, merged(b, c));
    // lse is below 32, so that it is known to 2^-19 or so; weights follow it
    EXPECT_NEAR(left.lse, right.lse, 0x1p-18);
    for (size_t d = 0; d < a.out.size(); ++d) {
      const float magnitude = std::fabs(a.out[d]) + std::fabs(b.out[d]) + std::fabs(c.out[d]);
      EXPECT_NEAR(ab.out[d], ba.out[d], 0x1p-22 * magnitude);
      EXPECT_NEAR(left.out[d], right.out[d], 0x1p-17 * magnitude);
    }
  }
}

TEST(MergePartials, EqualsMergingOneByOne) {
  constexpr size_t kPieces = 7, kStride = 3, kDim = 80;
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> out(kPieces * kStride * kDim), lse(kPieces * kStride);
  for (float& x : out) x = normal(random);
  for (float& x : lse) x = 8.0f * normal(random);
  for (const size_t piece : {0, 4}) lse[piece * kStride + 1] = kNothing;
  for (size_t piece = 0; piece < kPieces; ++piece) lse[piece * kStride + 2] = kNothing;
  for (size_t head = 0; head < kStride; ++head) {
    Partial want = {std::vector<float>(kDim), kNothing},
            got = {std::vector<float>(kDim, 9.0f), 9.0f};
    for (size_t piece = 0; piece < kPieces; ++piece) {
      const size_t at = piece * kStride + head;
      merge_partial(want.out.data(), &want.lse, &out[at * kDim], lse[at], kDim);
    }
    merge_partials(&out[head * kDim], &lse[head], kPieces, kStride, kDim, got.out.data(), &got.lse);
    EXPECT_EQ(std::isinf(got.lse), head == 2);
    if (head < 2) {
      EXPECT_NEAR(got.lse, want.lse, 0x1p-18);
    }
    for (size_t d = 0; d < kDim; ++d) EXPECT_NEAR(got.out[d], want.out[d], 0x1p-18);
  }
}

TEST(MergePartial, EmptyIsTheIdentityAndExtremesAreSafe) {
  const Partial empty = {{0.0f, 0.0f}, kNothing}, some = {{1.25f, -3.0f}, -7.5f};
  for (const Partial& p : {merged(empty, some), merged(some, empty)}) {
    EXPECT_EQ(p.out, some.out);
    EXPECT_EQ(p.lse, some.lse);
  }
  EXPECT_EQ(merged(empty, empty).lse, kNothing);
  const Partial high = {{2.0f, 4.0f}, 1e4f}, low = {{8.0f, 8.0f}, -1e4f};
  EXPECT_EQ(merged(low, high).out, high.out);
  EXPECT_EQ(merged(high, low).lse, 1e4f);
}

}  // namespace
}  // namespace reprise::kernels
