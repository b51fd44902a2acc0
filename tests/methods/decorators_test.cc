#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "attention/toy.h"
#include "methods/policy_laws.h"
#include "methods/registry.h"

namespace reprise {
namespace {

using kernels::Phase;
using testing::Toy;

std::unique_ptr<Policy> make(const Toy& toy, std::string_view spec) {
  auto policy = create_policy(policy_entries(), spec, toy.config());
  EXPECT_TRUE(policy) << policy.error().message;
  return std::move(*policy);
}

TEST(Dense, LeavesItsLayersToFullAttention) {
  Toy toy({4, 4, 2, 32}, 200);
  const auto decode = [&](std::string_view spec) {
    const auto policy = make(toy, spec);
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, *policy, 190, Phase::kPrefill);
    return toy.step(kv, *policy, 1, Phase::kDecode);
  };
  const auto full = decode("full"), some = decode("streaming:sink=0,window=32,positions=text"),
             mixed = decode("dense:first=1,last=1+streaming:sink=0,window=32,positions=text");
  const size_t width = toy.width();
  for (const size_t layer : {0, 3}) {
    EXPECT_TRUE(
        std::equal(&mixed[layer * width], &mixed[layer * width] + width, &full[layer * width]));
  }
  for (const size_t layer : {1, 2}) {
    EXPECT_TRUE(
        std::equal(&mixed[layer * width], &mixed[layer * width] + width, &some[layer * width]));
  }
}

TEST(Dense, NothingIsEvictedInDenseLayers) {
  Toy toy({3, 4, 2, 32}, 300);
  const auto policy = make(toy, "dense:first=1+streaming:sink=4,window=32");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 250, Phase::kPrefill);
  EXPECT_TRUE(keys_present(kv, 0, 0, 250));
  EXPECT_FALSE(keys_present(kv, 1, 0, 250));
  EXPECT_FALSE(policy->unbounded());
  EXPECT_TRUE(make(toy, "dense:first=0+streaming:window=32")->unbounded());
}

TEST(Skim, PromptsSeeAWindowAndAnswersEverything) {
  Toy toy({2, 4, 2, 32}, 260);
  const auto decode = [&](std::string_view spec, size_t rows, Phase phase) {
    const auto policy = make(toy, spec);
    SequenceKv kv = toy.new_sequence();
    for (int i = 0; i < 5; ++i) toy.step(kv, *policy, 50, Phase::kPrefill);
    return toy.step(kv, *policy, rows, phase);
  };
  const std::string skim = "skim:sink=8,window=40";
  EXPECT_TRUE(decode(skim, 1, Phase::kDecode) == decode("full", 1, Phase::kDecode));
  EXPECT_TRUE(decode(skim + "+quest:budget=64", 1, Phase::kDecode) ==
              decode("quest:budget=64", 1, Phase::kDecode));
  const auto seen = decode(skim, 9, Phase::kPrefill);
  EXPECT_TRUE(seen == decode("streaming:sink=8,window=40,positions=text", 9, Phase::kPrefill));
  EXPECT_FALSE(seen == decode("full", 9, Phase::kPrefill));
  const auto policy = make(toy, skim);
  EXPECT_FALSE(policy->reads_everything());
  EXPECT_NE(policy->prefill_key(), make(toy, "full")->prefill_key());
  EXPECT_NE(policy->prefill_key(), make(toy, "skim:window=41")->prefill_key());
}

// Rows that see all keys read them in one piece, and the others in two.
TEST(Skim, ChunksEndWhereTheWindowIsFull) {
  Toy toy({1, 4, 2, 32}, 16);
  const auto policy = make(toy, "skim:sink=8,window=40");
  for (const int32_t position : {0, 47}) EXPECT_EQ(policy->next_cut(position), 48);
  EXPECT_GT(policy->next_cut(48), 1 << 30);
  const auto both = make(toy, "skim:sink=8,window=400+mac:min_context=0,window=64,prefill=reuse");
  const int32_t first = make(toy, "mac:min_context=0,window=64,prefill=reuse")->next_cut(408);
  EXPECT_EQ(both->next_cut(0), 408);
  EXPECT_EQ(both->next_cut(408), first);
}

std::map<std::string, double> probed(Toy& toy, std::string_view spec) {
  const auto policy = make(toy, spec);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 250, Phase::kPrefill);
  for (int i = 0; i < 8; ++i) toy.step(kv, *policy, 1, Phase::kDecode);
  const auto stats = policy->stats();
  return {stats.begin(), stats.end()};
}

TEST(Probe, FullAttentionMissesNothing) {
  Toy toy({2, 4, 2, 32}, 300);
  const auto stats = probed(toy, "probe+full");
  EXPECT_EQ(stats.at("recovery"), 1.0);
  EXPECT_EQ(stats.at("topk_recall"), 1.0);
  EXPECT_EQ(stats.at("output_error"), 0.0);
}

TEST(Probe, MeasuresTheMassThatIsRead) {
  Toy toy({2, 4, 2, 32}, 300);
  double last = 0.0;
  for (const auto* spec :
       {"probe+quest:budget=32", "probe+quest:budget=96", "probe+quest:budget=224"}) {
    const auto stats = probed(toy, spec);
    EXPECT_GT(stats.at("recovery"), last);
    EXPECT_LT(stats.at("recovery"), 1.0);
    EXPECT_LE(stats.at("recovery"), stats.at("topk_recall"));
    EXPECT_LE(stats.at("topk_recall"), 1.0 + 1e-5);
    last = stats.at("recovery");
  }
  // A window's mass, computed by definition.
  const auto stats = probed(toy, "probe:layers=true+streaming:sink=0,window=64,positions=text");
  double mass = 0.0;
  const size_t group = 2, head_dim = 32;
  for (size_t token = 250; token < 258; ++token) {
    for (size_t head = 0; head < 4; ++head) {
      std::vector<float> logits;
      for (size_t key = 0; key <= token; ++key) {
        double dot = 0.0;
        std::vector<float> a(toy.rope().pairs() * 2), b(a.size());
        toy.rope().cos_sin(static_cast<int32_t>(token - key), a.data());
        const float* q = toy.q(1, token) + head * head_dim;
        const float* k = toy.k(1, key) + head / group * head_dim;
        for (size_t i = 0; i < head_dim; i += 2) {  // only the distance of positions matters
          const double c = a[i], s = a[i + 1];
          dot += (q[i] * c - q[i + 1] * s) * k[i] + (q[i] * s + q[i + 1] * c) * k[i + 1];
        }
        logits.push_back(static_cast<float>(dot) * toy.config().attention_scale);
      }
      double all = 0.0, read = 0.0;
      for (size_t key = 0; key <= token; ++key) {
        all += std::exp(logits[key]);
        if (key + 64 > token) read += std::exp(logits[key]);
      }
      mass += read / all;
    }
  }
  EXPECT_NEAR(stats.at("recovery_layer1"), mass / 32, 1e-4);
}

std::map<std::string, double> auto_stats(std::string_view spec, int steps) {
  Toy toy({2, 4, 2, 32}, 400);
  auto policy = make(toy, spec);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 100, Phase::kPrefill);
  for (int i = 0; i < steps; ++i) {
    toy.step(kv, *policy, 1, Phase::kDecode);
    if (i == 4) policy = policy->fork();
  }
  const auto stats = policy->stats();
  return {stats.begin(), stats.end()};
}

TEST(Auto, MeasuresEveryCandidateAgainWhenTheContextHasDoubled) {
  const auto stats = auto_stats("auto:among=quest/pqcache/random", 8);
  for (const auto* name : {"full", "quest", "pqcache", "random"}) {
    EXPECT_EQ(stats.at(std::string("auto_") + name), 0.25) << name;
  }
  // Once measured one is used, until 214 tokens are there.
  double most = 0, all = 0;
  for (const auto& [name, share] : auto_stats("auto:among=quest/pqcache/random", 100)) {
    if (!name.starts_with("auto_")) continue;
    most = std::max(most, share);
    all += share;
  }
  EXPECT_NEAR(all, 1.0, 1e-9);
  EXPECT_NEAR(most, 0.94, 1e-9);  // 2 of its trials and the 92 steps after all trials
}

TEST(Auto, AContextCanBeNamedInsteadOfMeasuring) {
  const auto stats = auto_stats("auto:from=140+quest", 80);
  EXPECT_EQ(stats.at("auto_quest"), 0.5);
  EXPECT_EQ(stats.at("auto_full"), 0.5);
}

TEST(Auto, SavesWhatItsCandidatesKeep) {
  const std::string spec =
      "auto:from=300+mac:min_context=0,window=64,band=32,sink=8,guard=false,tau=0.5";
  testing::expect_saved_state_goes_on(spec, 407);
  Toy toy({2, 4, 2, 32}, 440);
  toy.prompt_end = 400;
  const auto policy = testing::make_policy(toy, spec), restored = testing::make_policy(toy, spec);
  SequenceKv kv = toy.new_sequence();
  const size_t prompt[] = {400};
  testing::run(toy, *policy, kv, prompt, 10);
  const std::string state = policy->save_state();
  for (size_t length = 1; length < state.size(); length += 1 + length / 4) {
    EXPECT_FALSE(restored->restore_state(state.substr(0, length), 410)) << length;
  }
  EXPECT_FALSE(restored->restore_state(state + "x", 410));
  EXPECT_EQ(restored->observed_prompt_rows(420, 410), 64);
  ASSERT_TRUE(restored->restore_state(state, 410));
  EXPECT_GT(restored->state_bytes(), 0u);
  EXPECT_EQ(restored->observed_prompt_rows(420, 410), 10);  // the ring has what is before them
  EXPECT_TRUE(restored->restore_state({}, 410));            // of a file from before
  EXPECT_EQ(restored->observed_prompt_rows(420, 410), 64);
}

// What is small is left out on a device that does not have it, but not where the file is read.
TEST(Auto, CandidatesThatAFileDoesNotNameBeginAnew) {
  const Toy toy({2, 4, 2, 32}, 16);
  const auto saved = make(toy, "auto"), restored = make(toy, "auto");
  saved->restrict_to([](const Policy& policy) { return policy.spec() != "mac"; });
  const Status taken = restored->restore_state(saved->save_state(), 10);
  EXPECT_TRUE(taken) << taken.error().message;
}

TEST(Auto, RefusesWhatCannotTakeTurns) {
  Toy toy({2, 4, 2, 32}, 16);
  for (const std::string spec :
       {"auto+streaming", "auto:among=quest/h2o", "auto:among=infllm", "auto+snapkv"}) {
    const auto policy = create_policy(policy_entries(), spec, toy.config());
    ASSERT_FALSE(policy) << spec;
    EXPECT_EQ(policy.error().code, ErrorCode::kUnsupported) << spec;
  }
  const auto unknown = create_policy(policy_entries(), "auto:among=quest/pqcach", toy.config());
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnknownPolicy);
  EXPECT_THAT(unknown.error().message, ::testing::HasSubstr("pqcache"));
  EXPECT_TRUE(create_policy(policy_entries(), "auto", toy.config()));
  EXPECT_TRUE(create_policy(policy_entries(), "auto+dense+quest", toy.config()));
}

TEST(Probe, TellsAgesOfAnAnswerApart) {
  Toy toy({1, 4, 2, 32}, 400);
  SequenceKv kv = toy.new_sequence();
  const auto policy = make(toy, "probe:ages=true+quest:budget=48");
  toy.step(kv, *policy, 200, Phase::kPrefill);
  const auto figures = [&] {
    const PolicyStats stats = policy->stats();
    return std::map<std::string, double>(stats.begin(), stats.end());
  };
  for (int i = 0; i < 64; ++i) toy.step(kv, *policy, 1, Phase::kDecode);
  EXPECT_EQ(figures().at("recovery_from0"), figures().at("recovery"));
  EXPECT_FALSE(figures().contains("recovery_from64"));
  for (int i = 0; i < 64; ++i) toy.step(kv, *policy, 1, Phase::kDecode);
  const auto all = figures();
  EXPECT_NEAR(all.at("recovery_from0") + all.at("recovery_from64"), 2 * all.at("recovery"), 1e-9);
  policy->clear_stats();
  toy.step(kv, *policy, 1, Phase::kDecode);
  EXPECT_FALSE(figures().contains("recovery_from64"));
}

TEST(Probe, DoesNotChangeTheAnswer) {
  Toy toy({2, 4, 2, 32}, 300);
  const auto run = [&](std::string_view spec) {
    const auto policy = make(toy, spec);
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, *policy, 250, Phase::kPrefill);
    std::vector<std::vector<float>> out;
    for (int i = 0; i < 20; ++i) out.push_back(toy.step(kv, *policy, 1, Phase::kDecode));
    return out;
  };
  for (const std::string spec : {"quest:budget=64", "streaming:window=40", "random:budget=64"}) {
    EXPECT_EQ(run("probe+" + spec), run(spec)) << spec;
  }
}

// Steps on a device, of which the next one begins before the last one's time is known.
class AutoOnDevice {
 public:
  explicit AutoOnDevice(const Toy& toy) : policy_(make(toy, "auto+quest")) {}

  /// Whether the step read everything.
  bool step(double full_ms, double inner_ms) {
    const DeviceStep wanted = policy_->begin_device_step(position_);
    if (position_ > 100) policy_->step_took(position_ - 1, last_ms_);
    const bool full = wanted.policy->reads_everything();
    last_ms_ = !wanted.timed ? 0.0 : full ? full_ms : inner_ms;
    ++position_;
    return full;
  }
  void give_up_last() { --position_; }

 private:
  std::unique_ptr<Policy> policy_;
  int32_t position_ = 100;
  double last_ms_ = 0.0;
};

TEST(Auto, ChoosesByTheTimesOfStepsOnADevice) {
  const Toy toy({4, 4, 2, 32}, 200);
  for (const bool inner_pays : {false, true}) {
    AutoOnDevice steps(toy);
    std::vector<bool> full;
    for (int i = 0; i < 20; ++i) full.push_back(steps.step(1.0, inner_pays ? 0.5 : 0.95));
    const std::vector<bool> trials(full.begin(), full.begin() + 4);
    EXPECT_EQ(trials, (std::vector<bool>{true, true, false, false}));
    EXPECT_EQ(full.back(), !inner_pays);
    EXPECT_EQ(full[6], !inner_pays);
  }
}

TEST(Auto, LeavesOutWhatDoesNotRunUnlessItWasNamed) {
  const Toy toy({4, 4, 2, 32}, 200);
  const auto runs = [](const Policy& policy) {
    return policy.reads_everything() || policy.spec() == "quest";
  };
  const auto any = make(toy, "auto"), named = make(toy, "auto:among=quest/sparq");
  EXPECT_EQ(any->acting().size(), 4);
  any->restrict_to(runs);
  EXPECT_EQ(any->acting().size(), 2);
  named->restrict_to(runs);
  EXPECT_EQ(named->acting().size(), 3);
}

TEST(Auto, TriesAgainWhereAStepWasGivenUp) {
  const Toy toy({4, 4, 2, 32}, 200);
  AutoOnDevice steps(toy);
  for (int i = 0; i < 3; ++i) steps.step(1.0, 0.5);
  steps.give_up_last();
  EXPECT_TRUE(steps.step(1.0, 0.5));
  EXPECT_TRUE(steps.step(1.0, 0.5));
  EXPECT_FALSE(steps.step(1.0, 0.5));
}

}  // namespace
}  // namespace reprise
