#include "methods/attention_predictor/attention_predictor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "methods/attention_predictor/average.h"
#include "methods/policy_laws.h"
#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Outputs;
using testing::Recorder;
using testing::run;
using testing::Toy;

/// Attention to every block from the last row, averaged over the query heads of a KV head.
std::vector<double> block_shares(Toy& toy, const SequenceKv& kv, uint32_t layer, const float* q,
                                 size_t kv_head, bool largest) {
  const size_t group = toy.config().n_head / toy.config().n_kv_head;
  std::vector<int32_t> keys(static_cast<size_t>(kv.length()));
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<double> blocks((keys.size() + 15) / 16);
  for (size_t r = 0; r < group; ++r) {
    const size_t head = kv_head * group + r;
    const auto shares =
        testing::weights(toy, kv, layer, q + head * toy.config().head_dim, kv_head, keys);
    std::vector<double> own(blocks.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      own[i / 16] = largest ? std::max(own[i / 16], shares[i]) : own[i / 16] + shares[i];
    }
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] += own[i] / static_cast<double>(group);
  }
  return blocks;
}

std::vector<int32_t> chosen_blocks(const SelectionPart& part, size_t list, int32_t first,
                                   int32_t last) {
  std::vector<int32_t> blocks;
  for (const int32_t key : testing::keys_of(part, list)) {
    const int32_t block = key / 16;
    if (block < first || block >= last) continue;
    if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
  }
  return blocks;
}

TEST(AttentionPredictor, CalibratingAlwaysReadsTheBlocksWithMostAttention) {
  for (const bool largest : {false, true}) {
    Toy toy({2, 6, 2, 32}, 330);
    Recorder policy(toy, fmt::format("attention_predictor:budget=128,sink=16,window=20,period=1,"
                                     "pool={}",
                                     largest ? "max" : "sum"));
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 300, Phase::kPrefill);
    for (int step = 0; step < 20; ++step) {
      toy.step(kv, policy, 1, Phase::kDecode);
      const int32_t end = kv.length(), recent = (end - 20) / 16;
      for (size_t head = 0; head < 2; ++head) {
        const auto& seen = policy.seen[1];
        const auto shares = block_shares(toy, kv, 1, seen.q_rotated.data(), head, largest);
        auto blocks = chosen_blocks(seen.selection.parts.at(0), head, 1, recent);
        for (int32_t& block : blocks) block -= 1;
        const size_t count = static_cast<size_t>(128 - 16 - (end - recent * 16)) / 16;
        testing::expect_best(blocks, std::span(shares).subspan(1, static_cast<size_t>(recent) - 1),
                             count, 1e-6);
      }
    }
  }
}

TEST(AttentionPredictor, TheLastRowIsOfTheLastStep) {
  Toy toy({1, 4, 2, 32}, 330);
  Recorder policy(toy,
                  "attention_predictor:budget=128,sink=16,window=16,factor=0,calibrate=dense,"
                  "period=2");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 301, Phase::kPrefill);
  std::vector<std::vector<double>> before;
  for (int step = 0; step < 20; ++step) {
    toy.step(kv, policy, 1, Phase::kDecode);
    const auto& seen = policy.seen[0];
    const int32_t end = kv.length(), recent = (end - 16) / 16;
    ASSERT_EQ(seen.selection.all, end % 2 == 0);
    for (size_t head = 0; head < 2 && end % 2 != 0; ++head) {
      auto blocks = chosen_blocks(seen.selection.parts.at(0), head, 1, recent);
      for (int32_t& block : blocks) block -= 1;
      const size_t count = static_cast<size_t>(128 - 16 - (end - recent * 16)) / 16;
      if (before.empty()) continue;
      testing::expect_best(
          blocks, std::span(before[head]).subspan(1, static_cast<size_t>(recent) - 1), count, 1e-6);
    }
    before.clear();
    for (size_t head = 0; head < 2; ++head) {
      before.push_back(block_shares(toy, kv, 0, seen.q_rotated.data(), head, false));
    }
  }
}

TEST(AttentionPredictor, WithRoomForAllCandidatesEveryTokenIsReadAtEveryLength) {
  Toy toy({1, 2, 1, 32}, 200);
  Recorder policy(toy, "attention_predictor:budget=128,sink=32,window=32");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 90, Phase::kPrefill);
  for (int step = 0; step < 100; ++step) {
    toy.step(kv, policy, 1, Phase::kDecode);
    const Selection& selection = policy.seen[0].selection;
    if (kv.length() <= 128) {
      EXPECT_TRUE(selection.all);
      continue;
    }
    const auto keys = testing::keys_of(selection.parts.at(0), 0);
    EXPECT_LE(keys.size(), 128u);
    EXPECT_GT(keys.size(), 112u);
    // Sinks and the window, whatever the length modulo a page.
    for (int32_t key = 0; key < 32; ++key) EXPECT_EQ(keys[static_cast<size_t>(key)], key);
    for (size_t back = 1; back <= 32; ++back) {
      EXPECT_EQ(keys[keys.size() - back], kv.length() - static_cast<int32_t>(back));
    }
  }
}

TEST(AttentionPredictor, AShortHistoryIsEnoughToChooseFrom) {
  for (const int history : {1, 4, 8}) {
    Toy toy({1, 4, 2, 32}, 420);
    Recorder policy(
        toy, fmt::format("attention_predictor:budget=96,sink=16,window=16,history={}", history));
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 400, Phase::kPrefill);
    toy.step(kv, policy, 1, Phase::kDecode);
    EXPECT_FALSE(policy.seen[0].selection.all) << history;
  }
}

TEST(AttentionPredictor, PromptRowsSeeNothingBehindThem) {
  // The history of a prompt is that of a decoded answer with the same rows.
  Toy toy({2, 4, 2, 32}, 420);
  const auto spec = "attention_predictor:budget=96,sink=16,window=16,history=24";
  const auto prefilled = testing::make_policy(toy, spec), decoded = testing::make_policy(toy, spec);
  SequenceKv a = toy.new_sequence(), b = toy.new_sequence();
  toy.step(a, *prefilled, 400, Phase::kPrefill);
  const auto full = testing::make_policy(toy, "full");
  toy.step(b, *full, 376, Phase::kPrefill);
  ThreadPool pool(1);
  BlockScores scores(BlockPool::kSum, toy.config());
  AveragePredictor average(2, 0.7f, 16);
  std::vector<float> want(24), got(24);
  for (size_t token = 376; token < 400; ++token) {
    toy.step(b, *full, 1, Phase::kDecode);
    std::vector<float> q(toy.q(1, token), toy.q(1, token) + toy.width());
    std::vector<float> cos_sin(toy.rope().pairs() * 2);
    toy.rope().cos_sin(static_cast<int32_t>(token), cos_sin.data());
    kernels::rope(q.data(), cos_sin.data(), 4, 32, 16);
    const Row row = {0, static_cast<int32_t>(token), 0};
    ScoreRow pooled;
    scores.of_all({1, Phase::kDecode, {&row, 1}, nullptr, q.data(), 400, &b, &pool},
                  static_cast<int32_t>(token), {&pooled, 1});
    double sum = 0.0;
    for (size_t i = 0; i < pooled.blocks; ++i) sum += pooled.scores[i];
    EXPECT_NEAR(sum, 1.0, 1e-5);
    average.push(pooled);
  }
  StateWriter out;
  average.save(out);
  const std::string state = prefilled->save_state(), last = out.take();
  ASSERT_GT(state.size(), last.size());
  const std::string saved = state.substr(state.size() - last.size());  // the last layer's
  std::vector<float> a_values(saved.size() / 4 - 2), b_values(a_values.size());
  std::memcpy(a_values.data(), saved.data() + 8, a_values.size() * 4);
  std::memcpy(b_values.data(), last.data() + 8, b_values.size() * 4);
  for (size_t i = 0; i < a_values.size(); ++i) EXPECT_NEAR(a_values[i], b_values[i], 1e-6) << i;
}

TEST(AttentionPredictor, CalibrationFindsABlockThatWasLost) {
  // One key becomes important in the middle of an answer: only a row over all keys can show it.
  for (const char* calibrate : {"dense", "scores"}) {
    Toy toy({1, 2, 1, 32, KvType::kF32, 0, 0.0f, 2}, 420);
    for (size_t token = 310; token < 420; ++token) {
      // Hardly any dims are rotated: later queries look for key 100.
      for (size_t i = 0; i < 64; ++i) toy.q(0, token)[i] = 6.0f * toy.k(0, 100)[i % 32];
    }
    Recorder policy(toy, fmt::format("attention_predictor:budget=96,sink=16,window=16,period=8,"
                                     "calibrate={}",
                                     calibrate));
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 300, Phase::kPrefill);
    for (int step = 0; step < 61; ++step) toy.step(kv, policy, 1, Phase::kDecode);
    const auto& selection = policy.seen[0].selection;
    ASSERT_FALSE(selection.all);
    const auto shares = block_shares(toy, kv, 0, policy.seen[0].q_rotated.data(), 0, false);
    const auto keys = testing::keys_of(selection.parts.at(0), 0);
    double found = 0.0, random = 0.0;
    for (int32_t block = 0; block < static_cast<int32_t>(shares.size()); ++block) {
      const bool read = std::ranges::binary_search(keys, block * 16);
      (read ? found : random) += shares[static_cast<size_t>(block)];
    }
    EXPECT_GT(found, 0.5) << calibrate;
  }
}

class EveryPredictor : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(
    Specs, EveryPredictor,
    ::testing::Values("attention_predictor:budget=96",
                      "attention_predictor:budget=96,factor=0,period=0",
                      "attention_predictor:budget=96,calibrate=dense,period=5,pool=max",
                      "attention_predictor:budget=96,period=1"));

TEST_P(EveryPredictor, ChunksOfThePromptChangeNoBit) {
  testing::expect_chunks_and_threads_change_no_bit(GetParam());
}

TEST_P(EveryPredictor, TruncationForgetsEveryTokenBehindIt) {
  testing::expect_truncation_forgets_what_is_behind(GetParam());
}

TEST_P(EveryPredictor, SavedStateGoesOnAsTheOriginal) {
  testing::expect_saved_state_goes_on(GetParam(), 407);
}

TEST_P(EveryPredictor, WhatIsNoStateIsRefused) { testing::expect_state_is_checked(GetParam()); }

TEST(AttentionPredictor, LayersHaveBudgetsOfTheirOwn) {
  Toy toy({3, 4, 2, 32}, 420);
  Recorder policy(toy, "attention_predictor:budget=96,layers=1:192/2:4096");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 401, Phase::kPrefill);
  toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_LE(testing::keys_of(policy.seen[0].selection.parts.at(0), 0).size(), 96u);
  const size_t larger = testing::keys_of(policy.seen[1].selection.parts.at(0), 0).size();
  EXPECT_LE(larger, 192u);
  EXPECT_GT(larger, 176u);
  EXPECT_TRUE(policy.seen[2].selection.all);
  for (const char* bad : {"3:96", "1", "1:", ":96", "1:9", "1:96x", "1:96//", "1:16777217",
                          "1:2147483648", "1:4294967295"}) {
    const auto spec = fmt::format("attention_predictor:layers={}", bad);
    const auto refused = create_policy(policy_entries(), spec, toy.config());
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(AttentionPredictor, WorksUnderDecorators) {
  for (const char* spec :
       {"dense:first=1+attention_predictor:budget=96", "probe+attention_predictor:budget=96",
        "mac:min_context=0,tau=0.1,max_error=0+attention_predictor:budget=96"}) {
    Toy toy({2, 4, 2, 32}, 460);
    const auto policy = testing::make_policy(toy, spec);
    SequenceKv kv = toy.new_sequence();
    const size_t prompt[] = {400};
    run(toy, *policy, kv, prompt, 40);
    EXPECT_LT(toy.executor().cost(0).keys_read, toy.executor().cost(0).keys_visible) << spec;
  }
}

TEST(BlockScores, ListsOfQueryHeadsBecomeOne) {
  // Two query heads of a KV head with lists of their own, one of which names a block twice.
  ModelConfig config;
  config.n_head = 2;
  config.n_kv_head = 1;
  PageShares shares;
  shares.offsets = {0, 2, 5};
  shares.pages = {4, 1, 1, 4, 4};
  shares.values = {0.25f, 0.75f, 0.5f, 0.125f, 0.375f};
  const Row at = {0, 99, 0};
  ScoreRow row;
  BlockScores(BlockPool::kSum, config)
      .of_read({0, Phase::kDecode, {&at, 1}, nullptr, nullptr, 100, nullptr, nullptr}, shares, row);
  EXPECT_FALSE(row.whole());
  EXPECT_EQ(row.blocks, 7u);
  const auto read = row.read_by(0);
  ASSERT_EQ(std::vector<int32_t>(read.begin(), read.end()), (std::vector<int32_t>{1, 4}));
  EXPECT_FLOAT_EQ(row.scores_of(0)[0], 0.5f * (0.75f + 0.5f));
  EXPECT_FLOAT_EQ(row.scores_of(0)[1], 0.5f * (0.25f + 0.5f));
}

// Any rows: choices are those of a search through all forecasts.
TEST(AveragePredictor, ChoosesTheBestOfAllBlocks) {
  for (const auto& [factor, period] : {std::pair{0.7f, 0u}, {0.7f, 4u}, {0.0f, 0u}, {0.0f, 3u}}) {
    std::mt19937 random(7);
    AveragePredictor average(2, factor, period);
    for (size_t step = 0; step < 400; ++step) {
      const size_t blocks = 60 + step / 3, first = step < 300 ? 1 : 2, last = blocks - random() % 3;
      const size_t count = std::min<size_t>(step % 50 == 49 ? 70 : 12 + random() % 2, last - first);
      std::vector<float> forecast(last - first);
      std::vector<int32_t> best[2], want;
      for (size_t head = 0; head < 2 && step > 0; ++head) {
        average.forecast(head, first, last, forecast.data());
        average.best(head, first, last, count, best[head]);
        top_k(forecast, count, want);
        ASSERT_EQ(best[head], want) << factor << " " << period << " " << step;
      }
      ScoreRow row;
      const bool whole = step == 0 || (period > 0 && step % period == 0);
      whole ? row.reset(2, blocks) : row.begin_part(2, blocks);
      for (size_t head = 0; head < 2; ++head) {
        std::set<int32_t> read = {0, static_cast<int32_t>(blocks - 1)};
        for (const int32_t pick : best[head]) read.insert(pick + static_cast<int32_t>(first));
        if (step % 7 == 6) read.insert(static_cast<int32_t>(random() % blocks));  // of others, too
        if (whole) {
          for (size_t i = 0; i < blocks; ++i) {
            row.scores[head * blocks + i] = static_cast<float>(random() % 5) * 0.01f;  // ties
          }
          continue;
        }
        for (const int32_t block : read) {
          row.read.push_back(block);
          row.scores.push_back(static_cast<float>(random() % 9) / (4.5f * read.size()));
        }
        row.offsets.push_back(static_cast<uint32_t>(row.read.size()));
      }
      average.push(row);
    }
  }
}

TEST(AveragePredictor, FadesWhereNothingWasRead) {
  AveragePredictor average(1, 0.5f, 2);
  ScoreRow row;
  row.reset(1, 4);
  row.scores = {0.5f, 0.25f, 0.25f, 0.0f};
  average.push(row);
  row.begin_part(1, 4);
  row.scores = {0.0f, 1.0f};
  row.read = {0, 1};
  row.offsets.push_back(2);
  average.push(row);
  float got[6];
  average.forecast(0, 0, 6, got);
  const float faded = 0.25f * std::sqrt(0.5f);
  EXPECT_FLOAT_EQ(got[0], 0.25f);
  EXPECT_FLOAT_EQ(got[1], 0.125f + 0.5f * (1.0f - faded));
  EXPECT_FLOAT_EQ(got[2], faded);
  EXPECT_EQ(got[3], 0.0f);
  EXPECT_EQ(got[5], 0.0f);  // blocks that are younger than the last row
}

}  // namespace
}  // namespace reprise
