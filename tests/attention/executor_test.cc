#include "attention/executor.h"

#include <gtest/gtest.h>

#include "attention/partial.h"
#include "attention/scripted.h"

namespace reprise {
namespace {

using kernels::Phase;
using testing::add_part;
using testing::ScriptedPolicy;
using testing::Toy;
using testing::ToyShape;

template <class Keep>
void expect_row(Toy& toy, const float* out, size_t layer, size_t token, Keep keep,
                double tolerance = testing::kFloatTolerance) {
  for (size_t head = 0; head < toy.config().n_head; ++head) {
    const auto want =
        toy.expected(layer, token, head, keep, [&](size_t) { return static_cast<int32_t>(token); });
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(out[head * want.size() + i], want[i], tolerance)
          << "layer " << layer << " token " << token << " head " << head << " dim " << i;
    }
  }
}

struct GqaShape {
  uint32_t n_head, n_kv_head;
};

class ExecutorGqa : public ::testing::TestWithParam<GqaShape> {};

TEST_P(ExecutorGqa, FullAttentionMatchesTheDoubleReference) {
  ToyShape shape;
  shape.n_head = GetParam().n_head;
  shape.n_kv_head = GetParam().n_kv_head;
  Toy toy(shape, 90);
  ScriptedPolicy policy;
  SequenceKv kv = toy.new_sequence();
  const auto prompt = toy.step(kv, policy, 80, Phase::kPrefill);
  const auto all = [](size_t) { return true; };
  for (size_t layer = 0; layer < 2; ++layer) {
    for (const size_t token : {0, 1, 15, 16, 63, 64, 79}) {
      expect_row(toy, &prompt[(layer * 80 + token) * toy.width()], layer, token, all);
    }
  }
  for (size_t token = 80; token < 90; ++token) {
    const auto row = toy.step(kv, policy, 1, Phase::kDecode);
    expect_row(toy, &row[toy.width()], 1, token, all);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExecutorGqa,
                         ::testing::Values(GqaShape{1, 1}, GqaShape{4, 4}, GqaShape{4, 2},
                                           GqaShape{9, 3}, GqaShape{8, 1}, GqaShape{16, 1}));

TEST(Executor, LayerWindowBoundsWhatIsRead) {
  ToyShape shape;
  shape.window = 20;
  Toy toy(shape, 70);
  ScriptedPolicy policy;
  SequenceKv kv = toy.new_sequence();
  const auto prompt = toy.step(kv, policy, 69, Phase::kPrefill);
  const auto row = toy.step(kv, policy, 1, Phase::kDecode);
  for (const size_t token : {5, 19, 20, 68}) {
    expect_row(toy, &prompt[token * toy.width()], 0, token,
               [&](size_t key) { return key + 20 > token; });
  }
  expect_row(toy, row.data(), 0, 69, [](size_t key) { return key + 20 > 69; });
  expect_row(toy, &row[toy.width()], 1, 69, [](size_t) { return true; });
}

// Pages are given on with what they hold.
TEST(Executor, ValuesThatAreNoNumbersStayWithTheirSequence) {
  for (const kernels::KvType type : kernels::kKvTypes) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      ToyShape shape;
      shape.type = type;
      Toy toy(shape, 16);
      ScriptedPolicy policy;
      SequenceKv first = toy.new_sequence();
      const auto want = toy.step(first, policy, 5, phase);
      first.truncate(0);
      const std::vector<float> values(toy.v(0, 0), toy.v(0, 16));
      std::fill(toy.v(0, 5), toy.v(0, 10), NAN);
      std::fill(toy.v(0, 10), toy.v(0, 16), INFINITY);
      toy.step(first, policy, 16, Phase::kPrefill);
      first.truncate(0);
      std::copy(values.begin(), values.end(), toy.v(0, 0));
      SequenceKv second = toy.new_sequence();
      EXPECT_EQ(toy.step(second, policy, 5, phase), want) << kernels::kv_type_name(type);
    }
  }
}

TEST(Executor, SoftCapIsApplied) {
  ToyShape shape;
  shape.soft_cap = 2.0f;
  Toy toy(shape, 40);
  ScriptedPolicy policy;
  SequenceKv kv = toy.new_sequence();
  const auto out = toy.step(kv, policy, 40, Phase::kPrefill);
  expect_row(toy, &out[39 * toy.width()], 0, 39, [](size_t) { return true; });
}

TEST(Executor, ReadsOnlyTheSelectedRangesOfEachHead) {
  Toy toy({}, 130);
  ScriptedPolicy all;
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, all, 129, Phase::kPrefill);
  ScriptedPolicy some([](const QueryRows&, Selection& selection) {
    selection.all = false;
    SelectionPart& part = selection.parts.emplace_back();
    part.split = HeadSplit::kPerKvHead;
    part.add_list(std::vector<KeyRange>{{3, 20}, {64, 65}});
    part.add_list(std::vector<KeyRange>{{100, 130}});
  });
  const auto out = toy.step(kv, some, 1, Phase::kDecode);
  for (size_t head = 0; head < 4; ++head) {
    const auto keep = [&](size_t key) {
      return head < 2 ? (key >= 3 && key < 20) || key == 64 : key >= 100;
    };
    const auto want = toy.expected(0, 129, head, keep, [](size_t) { return 129; });
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(out[head * want.size() + i], want[i], testing::kFloatTolerance) << head;
    }
  }
  EXPECT_EQ(toy.executor().cost(0).keys_read, 2u * (18 + 30));  // two layers
  EXPECT_EQ(toy.executor().cost(0).keys_visible, 2u * 2 * 130);
}

// Beyond 256 pages, where the pieces of a list grow: all keys, or from one within a page on.
TEST(Executor, LongListsAreReadWhole) {
  ToyShape shape;
  shape.n_layer = 1;
  Toy toy(shape, 4701);
  const auto since = [](int32_t first) {
    return ScriptedPolicy([first](const QueryRows& rows, Selection& selection) {
      add_part(selection, {{0, 1}, {first, rows.rows.back().position + 1}});
    });
  };
  SequenceKv kv = toy.new_sequence();
  ScriptedPolicy late = since(4600), early = since(37);
  toy.step(kv, late, 4700, Phase::kPrefill);
  SequenceKv copy = kv;
  ScriptedPolicy all;
  const auto whole = toy.step(kv, all, 1, Phase::kDecode);
  const auto most = toy.step(copy, early, 1, Phase::kDecode);
  expect_row(toy, whole.data(), 0, 4700, [](size_t) { return true; });
  expect_row(toy, most.data(), 0, 4700, [](size_t key) { return key == 0 || key >= 37; });
}

TEST(Executor, PerQueryHeadListsSplitTheGroup) {
  Toy toy({}, 50);
  ScriptedPolicy policy([](const QueryRows& rows, Selection& selection) {
    selection.all = false;
    SelectionPart& part = selection.parts.emplace_back();
    part.split = HeadSplit::kPerQueryHead;
    for (int32_t head = 0; head < 4; ++head) {
      const KeyRange range = {head, rows.rows.back().position + 1};
      part.add_list({&range, 1});
    }
  });
  SequenceKv kv = toy.new_sequence();
  const auto out = toy.step(kv, policy, 50, Phase::kPrefill);
  for (size_t head = 0; head < 4; ++head) {
    const auto want = toy.expected(
        0, 49, head, [&](size_t key) { return key >= head; }, [](size_t) { return 49; });
    EXPECT_NEAR(out[49 * toy.width() + head * 32], want[0], testing::kFloatTolerance);
  }
}

TEST(Executor, PartsAndReusedResultsMergeToFullAttention) {
  for (const size_t count : {1, 40}) {  // decode, prefill
    Toy toy({}, 200);
    ScriptedPolicy all;
    SequenceKv kv = toy.new_sequence(), again = toy.new_sequence();
    const Phase phase = count == 1 ? Phase::kDecode : Phase::kPrefill;
    const size_t before = 200 - count;
    toy.step(kv, all, before, Phase::kPrefill);
    toy.step(again, all, before, Phase::kPrefill);
    const auto want = toy.step(kv, all, count, phase);
    // Two parts and an empty partial, which changes nothing.
    const Partial nothing = empty_partial(count, 4, 32);
    ScriptedPolicy parts([&](const QueryRows&, Selection& selection) {
      add_part(selection, {{0, 37}});
      add_part(selection, {{37, 200}});
      selection.reused = &nothing;
    });
    const auto got = toy.step(again, parts, count, phase);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6) << i;
  }
}

TEST(Executor, ReusedPartialStandsForTheKeysLeftOut) {
  Toy toy({}, 64);
  ScriptedPolicy all;
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, all, 63, Phase::kPrefill);
  Partial reused = empty_partial(1, 4, 32);
  std::fill(reused.lse.begin(), reused.lse.end(), 100.0f);  // outweighs everything read
  std::fill(reused.out.begin(), reused.out.end(), 0.25f);
  ScriptedPolicy policy([&](const QueryRows&, Selection& selection) {
    add_part(selection, {{0, 64}});
    selection.reused = &reused;
  });
  const auto out = toy.step(kv, policy, 1, Phase::kDecode);
  for (const float value : out) EXPECT_NEAR(value, 0.25f, 1e-6f);
}

TEST(Executor, AnEmptySelectionGivesZeros) {
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    Toy toy({}, 20);
    ScriptedPolicy none([](const QueryRows&, Selection& selection) { selection.all = false; });
    SequenceKv kv = toy.new_sequence();
    const auto out = toy.step(kv, none, 20, phase);
    EXPECT_EQ(out, std::vector<float>(out.size(), 0.0f)) << static_cast<int>(phase);
  }
}

TEST(Executor, PositionFreeKeysGiveTheSameAttention) {
  Toy toy({}, 100);
  ScriptedPolicy rotated, position_free({}, true);
  SequenceKv a = toy.new_sequence(), b = toy.new_sequence();
  const auto want = toy.step(a, rotated, 99, Phase::kPrefill);
  const auto got = toy.step(b, position_free, 99, Phase::kPrefill);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6) << i;
  const auto want_row = toy.step(a, rotated, 1, Phase::kDecode);
  const auto got_row = toy.step(b, position_free, 1, Phase::kDecode);
  for (size_t i = 0; i < want_row.size(); ++i) ASSERT_NEAR(got_row[i], want_row[i], 2e-6) << i;
}

TEST(Executor, PackedKeysAreReadAsIfNothingLayBetweenThem) {
  // Gaps inside a page, a page that two ranges share, and rows far from their own positions.
  for (const std::vector<KeyRange>& ranges : std::vector<std::vector<KeyRange>>{
           {{3, 5}, {18, 21}, {25, 64}, {150, 400}}, {{0, 16}, {80, 400}}, {{37, 400}}}) {
    const std::vector<KeyRange> read = {ranges.begin(), ranges.end() - 1};
    ScriptedPolicy policy(
        [&](const QueryRows& rows, Selection& selection) {
          auto list = read;
          list.push_back({ranges.back().begin, rows.end()});
          add_part(selection, list).packed = true;
        },
        true);
    std::vector<int32_t> packed(400, -1);
    int32_t position = 0;
    for (const KeyRange& range : ranges) {
      for (int32_t key = range.begin; key < range.end; ++key) {
        packed[static_cast<size_t>(key)] = position++;
      }
    }
    Toy toy({1, 6, 2, 32}, 205);
    ScriptedPolicy everything({}, true);
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, everything, 160, Phase::kPrefill);
    for (const size_t count : {40, 1, 1}) {
      const auto token = static_cast<size_t>(kv.length());
      const auto out = toy.step(kv, policy, count, count > 1 ? Phase::kPrefill : Phase::kDecode);
      for (size_t row = 0; row < count; row += 13) {
        for (size_t head = 0; head < 6; ++head) {
          const auto want = toy.expected(
              0, token + row, head, [&](size_t key) { return packed[key] >= 0; },
              [&](size_t key) {
                return packed[token + row] - packed[key] + static_cast<int32_t>(key);
              });
          for (size_t d = 0; d < 32; ++d) {
            ASSERT_NEAR(out[(row * 6 + head) * 32 + d], want[d], testing::kFloatTolerance);
          }
        }
      }
    }
  }
}

TEST(Executor, RotationOfQueriesIsCappedPerPart) {
  Toy toy({}, 60);
  ScriptedPolicy policy([](const QueryRows& rows, Selection& selection) {
    add_part(selection, {{0, 8}}).max_query_position = 20;
    const int32_t end = rows.rows.back().position + 1;
    SelectionPart& recent = add_part(selection, {{8, std::max(8, end)}});
    recent.window = 12;
  });
  SequenceKv kv = toy.new_sequence();
  const auto out = toy.step(kv, policy, 60, Phase::kPrefill);
  for (const size_t token : {4, 15, 30, 59}) {
    const auto want = toy.expected(
        1, token, 3, [&](size_t key) { return key < 8 || key + 12 > token; },
        [&](size_t key) {
          return static_cast<int32_t>(key < 8 ? std::min<size_t>(token, 20) : token);
        });
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(out[(60 + token) * toy.width() + 3 * 32 + i], want[i], testing::kFloatTolerance)
          << token;
    }
  }
}

TEST(Executor, SelectingAnEvictedKeyIsAnError) {
  Toy toy({}, 64);
  ScriptedPolicy all;
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, all, 63, Phase::kPrefill);
  ASSERT_EQ(kv.evict(1, 16, 32), 1u);
  ASSERT_TRUE(kv.reserve(1));
  const Row row = {0, 63, 0};
  const SequenceStep step = {&kv, &all, 0, 1, Phase::kDecode};
  toy.executor().begin({&row, 1}, {&step, 1});
  std::vector<float> out(toy.width());
  EXPECT_TRUE(toy.executor().attend(0, toy.q(0, 63), toy.k(0, 63), toy.v(0, 63), out.data()));
  const auto status =
      toy.executor().attend(1, toy.q(1, 63), toy.k(1, 63), toy.v(1, 63), out.data());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
}

class ExecutorTypes : public ::testing::TestWithParam<kernels::KvType> {};

TEST_P(ExecutorTypes, ChunksAndThreadsDoNotChangeABit) {
  ToyShape shape;
  shape.type = GetParam();
  shape.n_head = 6;
  const auto run = [&](std::vector<size_t> chunks, int threads) {
    Toy toy(shape, 700, threads);
    ScriptedPolicy policy;
    SequenceKv kv = toy.new_sequence();
    std::vector<float> last;
    for (const size_t chunk : chunks) last = toy.step(kv, policy, chunk, Phase::kPrefill);
    std::vector<float> out(last.end() - static_cast<std::ptrdiff_t>(toy.width()), last.end());
    for (int i = 0; i < 3; ++i) {
      const auto row = toy.step(kv, policy, 1, Phase::kDecode);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  };
  const auto want = run({697}, 1);
  EXPECT_EQ(run({697}, 2), want);
  EXPECT_EQ(run({512, 185}, 2), want);
  EXPECT_EQ(run({1, 16, 63, 600, 17}, 3), want);
  EXPECT_EQ(run({333, 300, 63, 1}, 2), want);
}

INSTANTIATE_TEST_SUITE_P(Types, ExecutorTypes, ::testing::ValuesIn(kernels::kKvTypes));

}  // namespace
}  // namespace reprise
