// Results of some parts, given back apart from the rest.
#include <gtest/gtest.h>

#include "attention/scripted.h"

namespace reprise {
namespace {

using kernels::Phase;
using testing::add_part;
using testing::ScriptedPolicy;
using testing::Toy;

/// Remembers what it is told of the last row.
class ObservingPolicy : public ScriptedPolicy {
 public:
  using ScriptedPolicy::ScriptedPolicy;
  bool observes(uint32_t, kernels::Phase phase) const override {
    return phase == kernels::Phase::kDecode;
  }
  void observe(const QueryRows& rows, const AttentionResult& result) override {
    lse[rows.layer].assign(result.lse, result.lse + 4);
  }
  std::vector<float> lse[2];  // [layers][n_head]
};

constexpr int32_t kHeadBegin[] = {0, 70, 33, 1};  // of the query heads of two KV heads

bool captured_key(size_t head, size_t key) {
  return key < 10 || (key >= static_cast<size_t>(kHeadBegin[head]) && key >= 10 && key < 1150);
}

/// The last of 1200 tokens, of which [0, 1150) are captured but for what heads do not see.
std::vector<float> decode_captured(Toy& toy, Policy& policy) {
  SequenceKv kv = toy.new_sequence();
  ScriptedPolicy all;
  toy.step(kv, all, 1199, Phase::kPrefill);
  return toy.step(kv, policy, 1, Phase::kDecode);
}

void select_captured(Selection& selection) {
  SelectionPart& recent = add_part(selection, {{1150, 1200}});
  recent.captured = false;
  add_part(selection, {{0, 10}}).captured = true;
  SelectionPart& past = add_part(selection, {{10, 1150}});
  past.captured = true;
  past.head_begin.assign(kHeadBegin, kHeadBegin + 4);
}

TEST(Capture, CapturedPartsAreAlsoGivenBackApart) {
  Toy toy({}, 1200);
  Partial captured[2];
  ObservingPolicy policy([&](const QueryRows& rows, Selection& selection) {
    select_captured(selection);
    selection.captured = &captured[rows.layer];
  });
  const auto out = decode_captured(toy, policy);
  // One KV head's list is read once, whatever its query heads see of it.
  EXPECT_EQ(toy.executor().cost(0).keys_read, 2u * 2 * 1200);
  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t head = 0; head < 4; ++head) {
      const auto position = [](size_t) { return 1199; };
      const auto part = toy.expected(
          layer, 1199, head, [&](size_t key) { return captured_key(head, key); }, position);
      const auto whole = toy.expected(
          layer, 1199, head, [&](size_t key) { return captured_key(head, key) || key >= 1150; },
          position);
      for (size_t i = 0; i < 32; ++i) {
        const size_t at = head * 32 + i;
        ASSERT_NEAR(captured[layer].out[at], part[i], testing::kFloatTolerance);
        ASSERT_NEAR(out[layer * toy.width() + at], whole[i], testing::kFloatTolerance);
      }
    }
  }
  // What is captured weighs what the same keys weigh alone.
  ObservingPolicy alone([&](const QueryRows&, Selection& selection) {
    select_captured(selection);
    selection.parts.erase(selection.parts.begin());
  });
  decode_captured(toy, alone);
  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t head = 0; head < 4; ++head) {
      EXPECT_NEAR(captured[layer].lse[head], alone.lse[layer][head], 2e-6);
      EXPECT_GT(policy.lse[layer][head], captured[layer].lse[head]);
    }
  }
}

TEST(Capture, ReusedResultsAreCapturedToo) {
  Toy toy({}, 1200);
  Partial first[2], second[2];
  ScriptedPolicy both([&](const QueryRows& rows, Selection& selection) {
    select_captured(selection);
    selection.captured = &first[rows.layer];
  });
  const auto want = decode_captured(toy, both);
  ScriptedPolicy again([&](const QueryRows& rows, Selection& selection) {
    add_part(selection, {{1150, 1200}});
    selection.reused = &first[rows.layer];
    selection.captured = &second[rows.layer];
  });
  const auto got = decode_captured(toy, again);
  EXPECT_EQ(got, want);
  for (size_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(second[layer].out, first[layer].out);
    EXPECT_EQ(second[layer].lse, first[layer].lse);
  }
}

TEST(Capture, CapturingDoesNotDependOnThreads) {
  std::vector<float> want, want_captured;
  for (const int threads : {1, 2, 5}) {
    Toy toy({}, 1200, threads);
    Partial captured;
    ScriptedPolicy policy([&](const QueryRows&, Selection& selection) {
      select_captured(selection);
      selection.captured = &captured;
    });
    const auto out = decode_captured(toy, policy);
    if (threads == 1) {
      want = out;
      want_captured = captured.out;
    }
    EXPECT_EQ(out, want) << threads;
    EXPECT_EQ(captured.out, want_captured) << threads;
  }
}

TEST(Capture, CapturingPrefillRowsIsAnError) {
  Partial captured;
  testing::expect_refused_in_prefill(
      [&](const QueryRows&, Selection& selection) { selection.captured = &captured; });
}

}  // namespace
}  // namespace reprise
