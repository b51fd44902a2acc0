#include "methods/baselines/snapkv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "methods/baselines/full.h"
#include "methods/eviction_oracle.h"
#include "methods/policy_laws.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::AttentionOracle;
using testing::kGroupShapes;
using testing::last_row;
using testing::Spy;
using testing::TokenList;
using testing::Toy;
using testing::ToyShape;

SnapKvOptions options(uint32_t budget, uint32_t window, uint32_t kernel = 7,
                      std::string pool = "max", std::string group = "mean") {
  return {budget, window, kernel, std::move(pool), std::move(group)};
}

/// What one KV head keeps of tokens, whose last ones are the prompt's, in double. The first `head`
/// tokens stay.
TokenList compressed(const SnapKvOptions& o, const AttentionOracle& attention, size_t kv_head,
                     const TokenList& tokens, size_t voters, size_t head = 0) {
  const size_t window = std::min(o.window, o.budget);
  if (tokens.size() <= o.budget) return tokens;
  const size_t voted = tokens.size() - window;
  std::vector<double> scores(voted);
  for (size_t i = 0; i < attention.group(); ++i) {
    std::vector<double> votes(voted);
    for (size_t row = tokens.size() - std::min(voters, window); row < tokens.size(); ++row) {
      const TokenList seen(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(row) + 1);
      const auto p = attention.probabilities(tokens[row], kv_head * attention.group() + i, seen);
      for (size_t j = 0; j < voted; ++j) votes[j] += p[j];
    }
    for (size_t j = 0; j < voted; ++j) {
      double pooled = 0.0;
      const auto half = static_cast<std::ptrdiff_t>(o.kernel / 2);
      for (std::ptrdiff_t near = -half; near < static_cast<std::ptrdiff_t>(o.kernel) - half;
           ++near) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(j) + near;
        if (at < 0 || at >= static_cast<std::ptrdiff_t>(voted)) continue;
        const double vote = votes[static_cast<size_t>(at)];
        pooled = o.pool == "max" ? std::max(pooled, vote) : pooled + vote / o.kernel;
      }
      scores[j] = o.group == "max" ? std::max(scores[j], pooled) : scores[j] + pooled;
    }
  }
  std::fill_n(scores.begin(), std::min(head, voted), INFINITY);
  std::vector<size_t> order(voted);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  order.resize(o.budget - window);
  std::sort(order.begin(), order.end());
  TokenList kept;
  for (const size_t i : order) kept.push_back(tokens[i]);
  kept.insert(kept.end(), tokens.begin() + static_cast<std::ptrdiff_t>(voted), tokens.end());
  return kept;
}

struct ParityCase {
  size_t shape;
  SnapKvOptions options;
};

class SnapKvParity : public ::testing::TestWithParam<ParityCase> {};

TEST_P(SnapKvParity, ThreeTurnsMatchTheOracle) {
  const ToyShape shape = kGroupShapes[GetParam().shape];
  const SnapKvOptions& o = GetParam().options;
  Toy toy(shape, 520);
  const AttentionOracle attention(toy, 1, 520);
  Spy spy(std::make_unique<SnapKvPolicy>(o, toy.config()), toy, 1, 520);
  SequenceKv kv = toy.new_sequence();
  std::vector<TokenList> want(shape.n_kv_head);
  const auto compare = [&](const std::vector<float>& out) {
    const int32_t token = kv.length() - 1;
    for (TokenList& list : want) {
      while (list.empty() || list.back() < token)
        list.push_back(list.empty() ? 0 : list.back() + 1);
    }
    ASSERT_EQ(spy.tokens(), want) << "token " << token;
    if (token % 13 == 0) attention.expect_output(last_row(toy, out), token, want);
  };
  for (const auto& [chunks, answer] :
       {std::pair{std::vector<size_t>{37, 120, 3}, 100}, std::pair{std::vector<size_t>{5}, 90},
        std::pair{std::vector<size_t>{30, 35}, 60}}) {
    const size_t prompt = std::accumulate(chunks.begin(), chunks.end(), size_t{0});
    toy.prompt_end = kv.length() + static_cast<int32_t>(prompt);
    for (const size_t chunk : chunks) {
      const auto out = toy.step(kv, spy, chunk, Phase::kPrefill);
      ASSERT_NO_FATAL_FAILURE(compare(out));
    }
    for (size_t head = 0; head < shape.n_kv_head; ++head) {
      want[head] = compressed(o, attention, head, want[head], prompt);
    }
    for (int step = 0; step < answer; ++step) {
      const auto out = toy.step(kv, spy, 1, Phase::kDecode);
      ASSERT_NO_FATAL_FAILURE(compare(out));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SnapKvParity,
    ::testing::Values(ParityCase{0, options(64, 16)}, ParityCase{1, options(64, 16)},
                      ParityCase{2, options(64, 16)}, ParityCase{3, options(64, 16)},
                      ParityCase{4, options(64, 16)}, ParityCase{2, options(50, 20, 5, "avg")},
                      ParityCase{2, options(50, 20, 5, "max", "max")},
                      ParityCase{4, options(41, 10, 4, "avg", "max")},
                      ParityCase{2, options(30, 64, 1)}, ParityCase{2, options(40, 1, 1)},
                      ParityCase{1, options(200, 16)}, ParityCase{1, options(1, 1)}));

// Behind documents, as A3 extends SnapKV. The window stands for the question's rows.
struct QuestionCase {
  int32_t head, question;  // tokens before and behind documents
  SnapKvOptions same;      // with a window, what is kept then
};

class SnapKvQuestion : public ::testing::TestWithParam<QuestionCase> {};

TEST_P(SnapKvQuestion, RowsVoteAndWhatIsBeforeDocumentsStays) {
  const ToyShape shape = kGroupShapes[2];
  const QuestionCase& c = GetParam();
  constexpr int32_t kPrompt = 190;
  Toy toy(shape, 260);
  const AttentionOracle attention(toy, 1, 260);
  SnapKvOptions by_question = c.same;
  by_question.window = 7;
  by_question.voters = "question";
  Spy spy(std::make_unique<SnapKvPolicy>(by_question, toy.config()), toy, 1, 260);
  SequenceKv kv = toy.new_sequence();
  const auto expect_kept = [&](const SnapKvOptions& o, int32_t prompt, size_t voters, size_t head,
                               std::vector<TokenList> want) {
    for (size_t i = 0; i < want.size(); ++i) {
      while (want[i].empty() || want[i].back() < prompt - 1) {
        want[i].push_back(want[i].empty() ? 0 : want[i].back() + 1);
      }
      want[i] = compressed(o, attention, i, want[i], voters, head);
    }
    toy.step(kv, spy, 1, Phase::kDecode);
    for (TokenList& tokens : want) tokens.push_back(prompt);
    EXPECT_EQ(spy.tokens(), want);
    return want;
  };
  const std::vector<TokenList> nothing(shape.n_kv_head);
  toy.prompt_end = kPrompt;
  spy.set_documents(c.head, kPrompt - c.question);
  const auto observed = static_cast<int32_t>(c.same.window);
  EXPECT_EQ(spy.observed_prompt_rows(kPrompt, kPrompt), observed);
  EXPECT_EQ(spy.observed_prompt_rows(kPrompt, c.head), 7);  // not with these documents
  toy.step(kv, spy, 170, Phase::kPrefill);
  toy.step(kv, spy, kPrompt - 170, Phase::kPrefill);
  const auto head = static_cast<size_t>(c.head);
  const auto kept = expect_kept(c.same, kPrompt, c.same.window, head, nothing);
  // A second question of the conversation: the first one and its answer are among the voters' rows.
  toy.prompt_end = kPrompt + 1 + 9;
  toy.step(kv, spy, 9, Phase::kPrefill);
  SnapKvOptions later = c.same;
  later.window = std::min<uint32_t>(static_cast<uint32_t>(c.question) + 10, c.same.budget / 2);
  expect_kept(later, toy.prompt_end, 9, head, kept);
  // Other documents: the window votes again.
  kv.truncate(0);
  spy.truncate(0);
  toy.prompt_end = 150;
  toy.step(kv, spy, 150, Phase::kPrefill);
  SnapKvOptions plain = c.same;
  plain.window = 7;
  expect_kept(plain, 150, 7, 0, nothing);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SnapKvQuestion,
    ::testing::Values(QuestionCase{13, 21, options(64, 21, 5, "avg")},
                      QuestionCase{0, 16, options(40, 16)},
                      QuestionCase{20, 60, options(64, 32, 5, "avg")},    // half of the budget
                      QuestionCase{90, 21, options(64, 21, 5, "avg")}));  // no room for others

TEST(SnapKvPolicy, ABudgetThatFitsChangesNoBit) {
  for (const auto type : {KvType::kBF16, KvType::kQ8_0, KvType::kBF12}) {
    ToyShape shape;
    shape.type = type;
    Toy toy(shape, 160);
    for (const size_t length : {1, 15, 16, 17, 31, 63, 64}) {
      SnapKvPolicy snap(options(64, 16), toy.config());
      FullPolicy full({}, toy.config());
      SequenceKv a = toy.new_sequence(), b = toy.new_sequence();
      ASSERT_EQ(toy.step(a, snap, length, Phase::kPrefill),
                toy.step(b, full, length, Phase::kPrefill));
      for (int i = 0; i < 90; ++i) {
        ASSERT_EQ(toy.step(a, snap, 1, Phase::kDecode), toy.step(b, full, 1, Phase::kDecode));
      }
      EXPECT_EQ(a.bytes(), b.bytes());
      EXPECT_EQ(snap.state_bytes(), 0u);
    }
  }
}

TEST(SnapKvPolicy, ThePromptIsReadDenselyAndItsPagesGoWithTheFirstToken) {
  Toy toy({}, 320);
  SnapKvPolicy snap(options(64, 16), toy.config());
  FullPolicy full({}, toy.config());
  SequenceKv a = toy.new_sequence(), b = toy.new_sequence();
  EXPECT_EQ(toy.step(a, snap, 200, Phase::kPrefill), toy.step(b, full, 200, Phase::kPrefill));
  EXPECT_EQ(a.bytes(), b.bytes());  // still whole for the prefix cache
  const size_t page = toy.pages().page_bytes();
  for (size_t generated = 1; generated <= 100; ++generated) {
    toy.step(a, snap, 1, Phase::kDecode);
    const StepCost& cost = toy.executor().cost(0);
    EXPECT_EQ(cost.keys_read, 4 * (64 + generated));
    EXPECT_EQ(cost.index_bytes_read, 0u);
    const size_t own_pages = (200 + generated + 15) / 16 - 200 / 16;
    EXPECT_EQ(cost.kv_bytes_read, 2 * (4 + own_pages) * page);
    EXPECT_EQ(snap.state_bytes(), 2 * 4 * page);
    EXPECT_EQ(a.bytes(), 2 * own_pages * page);
  }
}

TEST(SnapKvPolicy, MemoryPerTurnStaysBelowTheBudgetAndTheAnswer) {
  Toy toy({}, 2000);
  SnapKvPolicy snap(options(64, 16), toy.config());
  SequenceKv kv = toy.new_sequence();
  const size_t page = toy.pages().page_bytes();
  while (kv.length() < 1900) {
    toy.step(kv, snap, 70, Phase::kPrefill);
    for (int i = 0; i < 20; ++i) toy.step(kv, snap, 1, Phase::kDecode);
    EXPECT_LE(toy.pages().used_bytes(), 2 * (4 + 20 / 16 + 2) * page);
    EXPECT_EQ(snap.state_bytes(), 2 * 4 * page);
  }
}

TEST(SnapKvPolicy, APlantedKeySurvivesWithItsNeighbours) {
  Toy toy({}, 320);
  const ModelConfig& config = toy.config();
  const auto plant = [&](float* x, size_t heads) {  // in dims that are hardly rotated
    for (size_t head = 1; head <= heads; ++head) {
      std::fill_n(x + head * config.head_dim - 8, 8, 3.0f);
    }
  };
  plant(toy.k(1, 77), config.n_kv_head);
  for (size_t token = 268; token < 300; ++token) plant(toy.q(1, token), config.n_head);
  Spy spy(std::make_unique<SnapKvPolicy>(options(48, 32), config), toy, 1, 320);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, spy, 300, Phase::kPrefill);
  toy.step(kv, spy, 1, Phase::kDecode);
  for (const TokenList& tokens : spy.tokens()) {
    ASSERT_EQ(tokens.size(), 49u);
    EXPECT_THAT(tokens, ::testing::IsSupersetOf({74, 75, 76, 77, 78, 79, 80}));
    for (int32_t token = 268; token <= 300; ++token) {
      EXPECT_THAT(tokens, ::testing::Contains(token));
    }
  }
}

TEST(SnapKvScores, PoolsWithinTheEdgesAndJoinsTheGroup) {
  const std::vector<std::vector<float>> votes = {{8, 0, 0, 0, 0, 4}, {0, 0, 0, 2, 0, 0}};
  using ::testing::ElementsAre;
  EXPECT_THAT(snapkv_scores(options(8, 1, 3), votes), ElementsAre(8, 8, 2, 2, 6, 4));
  EXPECT_THAT(snapkv_scores(options(8, 1, 3, "max", "max"), votes), ElementsAre(8, 8, 2, 2, 4, 4));
  EXPECT_THAT(snapkv_scores(options(8, 1, 4, "avg"), votes), ElementsAre(2, 2, 2.5, 0.5, 1.5, 1.5));
  EXPECT_THAT(snapkv_scores(options(8, 1, 1, "avg"), votes), ElementsAre(8, 0, 0, 2, 0, 4));
}

TEST(SnapKvPolicy, NeitherChunksNorThreadsChangeABit) {
  testing::expect_chunks_and_threads_change_no_bit("snapkv:budget=64,window=32");
}

TEST(SnapKvPolicy, ForksGoOnAsIfTheyWereAlone) {
  Toy toy({}, 400);
  const auto prefill = [&](SequenceKv& kv, Policy& policy, size_t count) {
    toy.step(kv, policy, count, Phase::kPrefill);
    return toy.step(kv, policy, 1, Phase::kDecode);
  };
  SnapKvPolicy first(options(64, 16), toy.config()), alone(options(64, 16), toy.config());
  SequenceKv a = toy.new_sequence(), c = toy.new_sequence();
  prefill(a, first, 200);
  prefill(c, alone, 200);
  SequenceKv b = a;
  const auto second = first.fork();
  prefill(a, first, 100);  // compresses again: must leave the fork's side pages as they are
  EXPECT_EQ(prefill(b, *second, 20), prefill(c, alone, 20));
  EXPECT_EQ(b.length(), 222);
}

TEST(SnapKvPolicy, WithoutMemoryForSidePagesEverythingIsRead) {
  Toy toy({}, 300);
  SnapKvPolicy policy(options(64, 16), toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 200, Phase::kPrefill);
  SequenceKv hog = toy.new_sequence();
  ASSERT_TRUE(hog.reserve(toy.pages().free_pages() / 2 * kPageTokens));
  toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_EQ(toy.executor().cost(0).keys_read, 4u * 201);
  EXPECT_EQ(policy.stats().front().second, 2.0);
  hog.truncate(0);
  toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_EQ(toy.executor().cost(0).keys_read, 4u * (64 + 2));
}

TEST(SnapKvPolicy, ResumesAfterThePromptThatItCompressed) {
  Toy toy({}, 300);
  SnapKvPolicy policy(options(64, 16), toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 200, Phase::kPrefill);
  EXPECT_TRUE(policy.can_resume(kv, 50));
  const auto first = toy.step(kv, policy, 1, Phase::kDecode);
  for (int i = 0; i < 20; ++i) toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_TRUE(policy.can_resume(kv, 200));
  EXPECT_FALSE(policy.can_resume(kv, 199));
  kv.truncate(200);
  policy.truncate(200);
  EXPECT_EQ(toy.step(kv, policy, 1, Phase::kDecode), first);
  EXPECT_EQ(policy.prefill_key(), kDensePrefill);
  toy.step(kv, policy, 30, Phase::kPrefill);
  EXPECT_EQ(policy.prefill_key(), "");  // the KV of these rows is not that of dense reading
  kv.truncate(0);
  policy.truncate(0);
  EXPECT_EQ(policy.prefill_key(), kDensePrefill);
  EXPECT_EQ(policy.state_bytes(), 0u);
  EXPECT_EQ(toy.pages().used_bytes(), 0u);
}

TEST(SnapKvPolicy, ForgetsAChoiceThatRestsOnDroppedTokens) {
  Toy toy({}, 300);
  SnapKvPolicy policy(options(64, 16), toy.config());
  FullPolicy full({}, toy.config());
  SequenceKv kv = toy.new_sequence(), other = toy.new_sequence();
  toy.step(kv, policy, 200, Phase::kPrefill);
  kv.truncate(60);
  policy.truncate(60);
  toy.step(other, full, 60, Phase::kPrefill);
  EXPECT_EQ(toy.step(kv, policy, 1, Phase::kDecode), toy.step(other, full, 1, Phase::kDecode));
}

}  // namespace
}  // namespace reprise
