#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "methods/reattention/gate.h"
#include "methods/reattention_testing.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::expected;
using testing::far_keys;
using testing::Outputs;
using testing::outputs_of;
using testing::Recorder;
using testing::Toy;
constexpr const char* kSpec = testing::kLookFar;

TEST(Gate, EvidenceFadesByATenthARow) {
  Gate gate;
  EXPECT_EQ(gate.evidence(10), 0.0);
  gate.add(10, 30);
  gate.add(11, 20);
  gate.add(11, 7);  // another layer
  EXPECT_DOUBLE_EQ(gate.evidence(12), (0.9 * 27 + 0.81 * 30) / 9.0);
  gate.add(12, 0);
  gate.add(12, 9);
  EXPECT_DOUBLE_EQ(gate.evidence(12), (9 + 0.9 * 27 + 0.81 * 30) / 9.0);
  EXPECT_NEAR(gate.evidence(22), std::pow(0.9, 10) * (9 + 0.9 * 27 + 0.81 * 30) / 9.0, 1e-9)
      << "rows that did not choose count as rows at which no head stood out";
  for (int32_t row = 30; row < 400; ++row) gate.add(row, 50);
  EXPECT_NEAR(gate.evidence(400), 50.0, 1e-3);
  EXPECT_EQ(gate.evidence(399 + Gate::kRows), 0.0);
}

TEST(Gate, ForgetsAndRestoresExactly) {
  Gate gate, shorter;
  for (int32_t row = 0; row < 300; ++row) {
    const auto heads = static_cast<uint32_t>(row * 7 % 13);
    gate.add(row, heads);
    if (row < 200) shorter.add(row, heads);
  }
  Gate restored;
  ASSERT_TRUE(restored.restore(gate.save(), 300, 13));
  for (Gate* cut : {&gate, &restored}) {
    EXPECT_NE(cut->evidence(300), shorter.evidence(300));
    cut->truncate(200);
    EXPECT_EQ(cut->evidence(200), shorter.evidence(200));
    EXPECT_EQ(cut->save(), shorter.save());
  }
}

TEST(Gate, RefusesWhatItDidNotSave) {
  Gate gate, other;
  for (const int32_t row : {3, 4, 9}) gate.add(row, 5);
  const std::string state = gate.save();
  for (size_t length = 0; length < state.size(); ++length) {
    EXPECT_FALSE(other.restore(state.substr(0, length), 10, 5)) << length;
  }
  EXPECT_FALSE(other.restore(state + "x", 10, 5));
  EXPECT_FALSE(other.restore(state, 9, 5)) << "the sequence is shorter";
  EXPECT_FALSE(other.restore(state, 10, 4)) << "the model has fewer heads";
  EXPECT_EQ(other.evidence(10), 0.0);
  Gate backwards;
  for (const int32_t row : {4, 3}) backwards.add(row, 5);
  EXPECT_FALSE(other.restore(backwards.save(), 10, 5));
  EXPECT_TRUE(other.restore(state, 10, 5));
}

TEST(ReAttentionGate, OpensWhereEnoughHeadsStoodOutBefore) {
  constexpr uint32_t kLayers = 3;
  const std::set<size_t> all = {0, 1, 2, 3, 4, 5};
  for (const auto& [some, wide] : {std::pair{false, 40}, {true, 40}, {false, 90}, {true, 90}}) {
    // Layer 1 has no voting heads, layer 2 one of six, or all have six.
    const std::vector<std::set<size_t>> vote = {all, some ? std::set<size_t>{} : all,
                                                some ? std::set<size_t>{3} : all};
    const std::string heads = some ? ",heads=0:0/0:1/0:2/0:3/0:4/0:5/2:3" : "";
    const double voters = some ? 7 : 18, lead = 0.9, gate = 0.4;
    Toy toy({kLayers, 6, 2, 64}, 330);
    toy.prompt_end = 300;
    Recorder policy(toy,
                    std::string(kSpec) + ",lead=0.9,gate=0.4,wide=" + std::to_string(wide) + heads);
    SequenceKv kv = toy.new_sequence();
    for (size_t token = 0; token < 280; token += 20) toy.step(kv, policy, 20, Phase::kPrefill);
    std::vector<double> rows(280, 0.0);  // heads that stood out
    size_t opened = 0, closed = 0, open_changes = 0;
    for (int32_t row = 280; row < 330; ++row) {
      toy.step(kv, policy, 1, row < 300 ? Phase::kPrefill : Phase::kDecode);
      rows.push_back(0.0);
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        double evidence = 0.0;
        for (const double count : rows) evidence = 0.9 * evidence + count;
        const bool open = evidence / 9.0 >= gate * voters;
        auto want = expected(toy, layer, static_cast<size_t>(row), lead, vote[layer]);
        const size_t spans = want.every.size(), leading = want.leading.size();
        for (int32_t key = row + 1 - wide; key < row - 39 && !vote[layer].empty(); ++key) {
          want.leading.insert(key);  // which rows of a closed gate read in any case
        }
        ASSERT_EQ(far_keys(policy.seen[layer], row), open ? want.every : want.leading)
            << row << " " << layer;
        rows.back() += want.heads;
        (open ? opened : closed) += spans == leading ? 0 : 1;
        open_changes += open && layer > 0 ? 1 : 0;
      }
    }
    EXPECT_GT(opened, 5u);
    EXPECT_GT(closed, 5u);
    EXPECT_GT(open_changes, 0u);
  }
}

TEST(ReAttentionGate, IsPlainWhereItIsOpenAndTheLeadAloneWhereItIsNot) {
  const Outputs plain = outputs_of(""), lead = outputs_of(",lead=0.9");
  EXPECT_TRUE(outputs_of(",lead=0.9,gate=1,wide=40") == lead);
  EXPECT_TRUE(outputs_of(",lead=0.9,gate=1") == outputs_of(",lead=0.9,gate=1,wide=160"));
  EXPECT_FALSE(outputs_of(",lead=0.9,gate=1,wide=41") == lead);
  Outputs open = outputs_of(",lead=0.9,gate=0.000001");
  EXPECT_NE(open[0], plain[0]) << "nothing stood out before the first layer of the first row";
  EXPECT_TRUE(std::equal(open.begin() + 1, open.end(), plain.begin() + 1));
  EXPECT_FALSE(std::equal(lead.begin() + 1, lead.end(), plain.begin() + 1));
}

TEST(ReAttentionGate, ForksCutSequencesAndRestoredOnesGoOnAsIfAlone) {
  Toy toy({2, 6, 2, 64, KvType::kBF16}, 360);
  toy.prompt_end = 300;
  const std::string spec = std::string(kSpec) + ",lead=0.9,gate=0.3";
  const auto policy = testing::make_policy(toy, spec);
  SequenceKv kv = toy.new_sequence();
  for (size_t token = 0; token < 280; token += 20) toy.step(kv, *policy, 20, Phase::kPrefill);
  outputs_of(toy, *policy, kv, 30);
  ASSERT_EQ(kv.length(), 310);
  const auto forked = policy->fork(), restored = testing::make_policy(toy, spec),
             blank = testing::make_policy(toy, spec);
  ASSERT_TRUE(restored->restore_state(policy->save_state(), 310));
  EXPECT_FALSE(blank->restore_state(policy->save_state(), 309));
  SequenceKv forked_kv = kv, restored_kv = kv, blank_kv = kv;
  const Outputs want = outputs_of(toy, *policy, kv, 40);
  EXPECT_TRUE(outputs_of(toy, *forked, forked_kv, 40) == want);
  EXPECT_TRUE(outputs_of(toy, *restored, restored_kv, 40) == want);
  EXPECT_FALSE(outputs_of(toy, *blank, blank_kv, 40) == want) << "evidence would not matter";
  for (auto [how, which] : {std::pair{policy.get(), &kv}, {restored.get(), &restored_kv}}) {
    how->truncate(305);
    which->truncate(305);
    const Outputs again = outputs_of(toy, *how, *which, 45);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), again.begin() + 5));
  }
}

TEST(ReAttentionGate, NeedsALeadAndRowsThatAllChoose) {
  const ModelConfig config = testing::toy_config({});
  const auto message = [&](const char* spec) {
    const auto policy = create_policy(policy_entries(), spec, config);
    return policy ? std::string("fine") : policy.error().message;
  };
  EXPECT_EQ(message("reattention:lead=2,gate=0.05"), "fine");
  EXPECT_EQ(message("reattention:gate=0.05"), "fine");
  EXPECT_NE(message("reattention:lead=2,gate=0.05,interval=2").find("leave interval out"),
            std::string::npos);
  EXPECT_NE(message("reattention:lead=2,gate=1.5").find("gate"), std::string::npos);
  EXPECT_EQ(message("reattention:wide=2000"), "fine");
  EXPECT_NE(message("reattention:agree=0,wide=2000").find("or give local=2000"), std::string::npos);
  EXPECT_EQ(message("reattention:agree=0.1"), "fine");
  EXPECT_NE(message("reattention:agree=0.1,gate=0.1").find("leave one out"), std::string::npos);
  EXPECT_NE(message("reattention:agree=0.1,fill=true").find("leave one out"), std::string::npos);
  EXPECT_EQ(message("reattention:own=never"), "fine");
  EXPECT_NE(message("reattention:agree=0,own=never").find("where heads agree"), std::string::npos);
  for (const char* spec : {"reattention:lead=2,gate=0.05", "reattention"}) {
    EXPECT_FALSE((*create_policy(policy_entries(), spec, config))->joins_cells());
  }
}

// What heads agree on is read by default, unless something else decides what is read.
TEST(ReAttentionGate, TheDefaultGivesWay) {
  ModelConfig config = testing::toy_config({1, 6, 2, 32});
  config.context = 8192;
  const auto settings = [&](const char* spec) {
    const auto policy = create_policy(policy_entries(), spec, config);
    return dynamic_cast<const ReAttentionPolicy&>(**policy).settings();
  };
  const float two = 2.0f / config.attention_scale;
  EXPECT_GT(settings("reattention").agree, 0.0f);
  EXPECT_EQ(settings("reattention").lead, two);
  EXPECT_EQ(settings("reattention:lead=1").lead, two / 2);
  EXPECT_EQ(settings("reattention:gate=0.1").lead, two);
  EXPECT_EQ(settings("reattention:gate=0.1").agree, 0.0f);
  for (const char* spec :
       {"reattention:agree=0", "reattention:fill=true", "reattention:decode-picks=2",
        "reattention:spans=7", "reattention:heads=0:1/0:2", "reattention:span=2000,spans=3"}) {
    EXPECT_FALSE(settings(spec).watches()) << spec;
    EXPECT_EQ(settings(spec).lead, 0.0f) << spec;
    EXPECT_EQ(settings(spec).interval, 1) << spec;
  }
  EXPECT_EQ(settings("reattention").interval, 12);
  EXPECT_FALSE(settings("reattention").asks_for_interval) << "a GPU takes the default";
  EXPECT_EQ(settings("reattention:gate=0.1").interval, 1);
  EXPECT_EQ(settings("reattention:interval=3").interval, 3);
  EXPECT_GT(settings("reattention:interval=3").agree, 0.0f);
  EXPECT_TRUE(settings("reattention:interval=3").asks_for_interval);
}

}  // namespace
}  // namespace reprise
