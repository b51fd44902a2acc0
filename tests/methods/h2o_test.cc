#include "methods/baselines/h2o.h"

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

H2oOptions options(uint32_t budget, uint32_t observe = 256, float recent = 0.5f,
                   std::string normalise = "none") {
  return {budget, recent, observe, std::move(normalise)};
}

/// H2O of one KV head as section 4 of the paper describes it, in double over a plain list.
class Oracle {
 public:
  Oracle(const H2oOptions& options, const AttentionOracle& attention, size_t kv_head)
      : options_(options), attention_(attention), kv_head_(kv_head) {}

  void prompt(int32_t first, int32_t end) {
    if (static_cast<size_t>(first) > 0) shrink();
    const int32_t observe = options_.observe == 0 ? end : static_cast<int32_t>(options_.observe);
    for (int32_t token = first; token < end; ++token) {
      tokens_.push_back(token);
      sums_[token] = 0.0;
      if (token >= end - observe) vote(token);
    }
  }
  void decode(int32_t token) {
    shrink();
    tokens_.push_back(token);
    sums_[token] = 0.0;
    vote(token);
    shrink();
  }
  const TokenList& tokens() const { return tokens_; }
  double sum(int32_t token) const { return sums_.at(token); }

 private:
  void vote(int32_t token) {
    voters_.push_back(token);
    for (size_t i = 0; i < attention_.group(); ++i) {
      const auto p = attention_.probabilities(token, kv_head_ * attention_.group() + i, tokens_);
      for (size_t n = 0; n < p.size(); ++n) sums_[tokens_[n]] += p[n];
    }
  }
  double score(int32_t token) const {
    if (options_.normalise == "none") return sums_.at(token);
    const auto saw = std::count_if(voters_.begin(), voters_.end(),
                                   [&](int32_t voter) { return voter >= token; });
    return sums_.at(token) / std::max<double>(1.0, static_cast<double>(saw));
  }
  void shrink() {
    const auto recent = std::max(1l, std::lround(options_.recent * options_.budget));
    while (tokens_.size() > options_.budget) {
      auto weakest = tokens_.begin();
      for (auto it = weakest; it < tokens_.end() - recent; ++it) {
        if (score(*it) <= score(*weakest)) weakest = it;
      }
      tokens_.erase(weakest);
    }
  }

  H2oOptions options_;
  const AttentionOracle& attention_;
  size_t kv_head_;
  TokenList tokens_, voters_;
  std::map<int32_t, double> sums_;
};

struct ParityCase {
  size_t shape;
  H2oOptions options;
};

class H2oParity : public ::testing::TestWithParam<ParityCase> {};

TEST_P(H2oParity, PromptsAndManyStepsMatchTheOracle) {
  const ToyShape shape = kGroupShapes[GetParam().shape];
  const H2oOptions& o = GetParam().options;
  Toy toy(shape, 520);
  const AttentionOracle attention(toy, 1, 520);
  auto policy = std::make_unique<H2oPolicy>(o, toy.config());
  const H2oPolicy& h2o = *policy;
  Spy spy(std::move(policy), toy, 1, 520);
  std::vector<Oracle> oracles;
  for (size_t head = 0; head < shape.n_kv_head; ++head) oracles.emplace_back(o, attention, head);
  SequenceKv kv = toy.new_sequence();
  const auto compare = [&](int32_t token, const std::vector<float>& out) {
    for (size_t head = 0; head < shape.n_kv_head; ++head) {
      ASSERT_EQ(spy.tokens()[head], oracles[head].tokens()) << "token " << token;
    }
    if (token % 13 == 0) attention.expect_output(last_row(toy, out), token, spy.tokens());
  };
  for (const auto& [chunks, answer] : {std::pair{std::vector<size_t>{37, 80, 3}, 300},
                                       std::pair{std::vector<size_t>{20, 19}, 60}}) {
    const int32_t first = kv.length();
    toy.prompt_end =
        first + static_cast<int32_t>(std::accumulate(chunks.begin(), chunks.end(), size_t{0}));
    for (Oracle& oracle : oracles) oracle.prompt(first, toy.prompt_end);
    std::vector<float> out;
    for (const size_t chunk : chunks) out = toy.step(kv, spy, chunk, Phase::kPrefill);
    compare(kv.length() - 1, out);
    for (int step = 0; step < answer; ++step) {
      for (Oracle& oracle : oracles) oracle.decode(kv.length());
      out = toy.step(kv, spy, 1, Phase::kDecode);
      ASSERT_NO_FATAL_FAILURE(compare(kv.length() - 1, out));
    }
  }
  // The sums too: sums() starts with the heavy tokens, then come the last ones.
  for (size_t head = 0; head < shape.n_kv_head; ++head) {
    const TokenList& heavy = h2o.heavy(1, head);
    const auto& sums = h2o.sums(1, head);
    ASSERT_EQ(sums.size(), o.budget);
    for (size_t i = 0; i < sums.size(); ++i) {
      const int32_t token =
          i < heavy.size() ? heavy[i] : kv.length() - static_cast<int32_t>(sums.size() - i);
      EXPECT_NEAR(sums[i], oracles[head].sum(token), 1e-4 * (1 + sums[i]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, H2oParity,
    ::testing::Values(ParityCase{0, options(48)}, ParityCase{1, options(48)},
                      ParityCase{2, options(48, 20)}, ParityCase{3, options(48, 0)},
                      ParityCase{4, options(48)}, ParityCase{2, options(50, 30, 0.2f)},
                      ParityCase{2, options(48, 0, 0.5f, "count")},
                      ParityCase{4, options(33, 20, 0.7f, "count")},
                      ParityCase{2, options(20, 20, 1.0f)}, ParityCase{2, options(20, 20, 0.0f)},
                      ParityCase{2, options(1, 20)}));

TEST(H2oPolicy, ABudgetThatFitsChangesNoBit) {
  for (const auto type : {KvType::kBF16, KvType::kQ8_0, KvType::kBF12}) {
    ToyShape shape;
    shape.type = type;
    Toy toy(shape, 80);
    for (const size_t length : {1, 15, 16, 17, 63, 64}) {
      H2oPolicy h2o(options(64), toy.config());
      FullPolicy full({}, toy.config());
      SequenceKv a = toy.new_sequence(), b = toy.new_sequence();
      for (size_t prompt = (length + 1) / 2; static_cast<size_t>(a.length()) < length;) {
        const size_t count = a.length() == 0 ? prompt : 1;
        const Phase phase = a.length() == 0 ? Phase::kPrefill : Phase::kDecode;
        ASSERT_EQ(toy.step(a, h2o, count, phase), toy.step(b, full, count, phase)) << length;
      }
      EXPECT_EQ(a.bytes(), b.bytes());
    }
  }
}

TEST(H2oPolicy, ReadsExactlyTheBudgetAndCountsWhatItScores) {
  Toy toy({}, 300);
  H2oPolicy policy(options(48, 256, 0.25f), toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 200, Phase::kPrefill);
  const ModelConfig& config = toy.config();
  const size_t tile = toy.pages().layout().tile_bytes();
  while (kv.length() < 300) {
    const auto length = static_cast<size_t>(kv.length());
    toy.step(kv, policy, 1, Phase::kDecode);
    const StepCost& cost = toy.executor().cost(0);
    EXPECT_EQ(cost.keys_read, config.n_layer * config.n_kv_head * 48u);
    // 36 heavy tokens, and 12 recent ones with the new one that stood at length - 12 .. length.
    const size_t pages = 3 + length / 16 - (length - 12) / 16 + 1;
    EXPECT_EQ(cost.index_bytes_read, config.n_layer * config.n_kv_head * pages * tile);
  }
}

TEST(H2oPolicy, SumsAreConservedWhileNothingIsDropped) {
  for (const ToyShape& shape : kGroupShapes) {
    Toy toy(shape, 100);
    H2oPolicy policy(options(200, 30), toy.config());
    SequenceKv kv = toy.new_sequence();
    toy.prompt_end = 60;
    toy.step(kv, policy, 25, Phase::kPrefill);
    toy.step(kv, policy, 35, Phase::kPrefill);
    while (kv.length() < 100) toy.step(kv, policy, 1, Phase::kDecode);
    for (size_t head = 0; head < shape.n_kv_head; ++head) {
      const auto& sums = policy.sums(1, head);
      const uint32_t heads = shape.n_head / shape.n_kv_head;
      const double rows = 30 + 40, group = heads;
      EXPECT_NEAR(std::accumulate(sums.begin(), sums.end(), 0.0), rows * group,
                  1e-5 * rows * group);
    }
  }
}

TEST(H2oPolicy, DroppedTokensNeverComeBack) {
  Toy toy({}, 400);
  Spy spy(std::make_unique<H2oPolicy>(options(32), toy.config()), toy, 1, 400);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, spy, 100, Phase::kPrefill);
  auto before = spy.tokens();
  while (kv.length() < 400) {
    toy.step(kv, spy, 1, Phase::kDecode);
    for (size_t head = 0; head < before.size(); ++head) {
      before[head].push_back(kv.length() - 1);
      EXPECT_THAT(before[head], ::testing::IsSupersetOf(spy.tokens()[head]));
    }
    before = spy.tokens();
  }
}

TEST(H2oPolicy, OfEqualSumsTheOlderTokenStays) {
  Toy toy({}, 200);
  const ModelConfig& config = toy.config();
  std::fill_n(toy.q(0, 0), size_t{config.n_layer} * 200 * toy.width(), 0.0f);  // p = 1 / keys
  H2oPolicy policy(options(40, 1, 0.5f), config);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 100, Phase::kPrefill);
  toy.step(kv, policy, 99, Phase::kPrefill);  // the first 40 tokens that are left have equal sums
  toy.step(kv, policy, 1, Phase::kDecode);
  TokenList oldest(20);
  std::iota(oldest.begin(), oldest.end(), 0);
  EXPECT_EQ(policy.heavy(1, 0), oldest);
  EXPECT_EQ(policy.heavy(1, 1), oldest);
}

TEST(H2oPolicy, MemoryIsConstantOverALongAnswer) {
  Toy toy({}, 3000);
  H2oPolicy policy(options(64, 16), toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 100, Phase::kPrefill);
  toy.step(kv, policy, 1, Phase::kDecode);
  const uint64_t state = policy.state_bytes();
  // 32 heavy tokens; 32 recent ones in up to 3 pages and the one that is being given up.
  const uint64_t bound = (2 + 4) * toy.config().n_layer * toy.pages().page_bytes();
  while (kv.length() < 3000) {
    toy.step(kv, policy, 1, Phase::kDecode);
    ASSERT_LE(toy.pages().used_bytes(), bound);
    ASSERT_EQ(policy.state_bytes(), state);
  }
  // Side pages, and 4 bytes for each sum and each heavy position.
  EXPECT_EQ(state, 2 * 2 * toy.pages().page_bytes() + 2 * (2 * (64 + 32) * 4 + sizeof(KeyRange)));
}

TEST(H2oPolicy, NeitherChunksNorThreadsChangeABit) {
  testing::expect_chunks_and_threads_change_no_bit("h2o:budget=64,observe=100");
}

TEST(H2oPolicy, ForksGoOnAsIfTheyWereAlone) {
  Toy toy({}, 260);
  const auto negate_tail = [&] {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      for (size_t i = 0; i < 60 * toy.width(); ++i) toy.q(layer, 200)[i] *= -1.0f;
    }
  };
  const auto run = [&](SequenceKv& kv, Policy& policy, int32_t end) {
    std::vector<float> out;
    while (kv.length() < end) {
      const auto row = toy.step(kv, policy, 1, Phase::kDecode);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  };
  const auto start = [&](SequenceKv& kv, Policy& policy) {
    toy.step(kv, policy, 150, Phase::kPrefill);
    run(kv, policy, 200);
  };
  H2oPolicy first(options(40), toy.config()), alone(options(40), toy.config());
  H2oPolicy other_alone(options(40), toy.config());
  SequenceKv a = toy.new_sequence(), c = toy.new_sequence(), d = toy.new_sequence();
  start(a, first);
  start(c, alone);
  start(d, other_alone);
  SequenceKv b = a;
  const auto second = first.fork();
  const auto a_begin = run(a, first, 230);
  EXPECT_EQ(a_begin, run(c, alone, 230));
  negate_tail();
  const auto b_out = run(b, *second, 260), d_out = run(d, other_alone, 260);
  EXPECT_EQ(b_out, d_out);
  EXPECT_NE(std::vector<float>(b_out.begin(), b_out.begin() + 100),
            std::vector<float>(a_begin.begin(), a_begin.begin() + 100));
  negate_tail();
  EXPECT_EQ(run(a, first, 260), run(c, alone, 260));
}

TEST(H2oPolicy, WithoutMemoryForSidePagesEverythingIsRead) {
  Toy toy({}, 300);
  H2oPolicy policy(options(64), toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 200, Phase::kPrefill);
  SequenceKv hog = toy.new_sequence();
  const uint64_t free = toy.pages().free_pages();
  ASSERT_TRUE(hog.reserve(free / 2 * kPageTokens));
  toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_EQ(toy.executor().cost(0).keys_read, 4u * 201);
  EXPECT_EQ(policy.stats().front().first, "fallback");
  EXPECT_EQ(policy.stats().front().second, 4.0);  // before and after the row, in two layers
  hog.truncate(0);
  toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_EQ(toy.executor().cost(0).keys_read, 4u * 64);
  EXPECT_EQ(policy.stats().front().second, 4.0);
  policy.clear_stats();
  EXPECT_EQ(policy.stats().front().second, 0.0);
}

TEST(H2oPolicy, ResumesWhereItStoodOrFromWhatIsStillThere) {
  Toy toy({}, 300);
  const auto tail = [&](SequenceKv& kv, Policy& policy) {
    toy.step(kv, policy, 50, Phase::kPrefill);
    return toy.step(kv, policy, 1, Phase::kDecode);
  };
  H2oPolicy policy(options(64), toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 200, Phase::kPrefill);
  EXPECT_TRUE(policy.can_resume(kv, 100));  // nothing is evicted before the answer begins
  kv.truncate(100);
  policy.truncate(100);
  H2oPolicy fresh(options(64), toy.config());
  SequenceKv other = toy.new_sequence();
  FullPolicy full({}, toy.config());
  toy.step(other, full, 100, Phase::kPrefill);
  EXPECT_EQ(tail(kv, policy), tail(other, fresh));
  EXPECT_TRUE(policy.can_resume(kv, 151));
  EXPECT_FALSE(policy.can_resume(kv, 150));
  EXPECT_TRUE(policy.can_resume(kv, 0));
  EXPECT_EQ(policy.prefill_key(), kDensePrefill);
  toy.step(kv, policy, 50, Phase::kPrefill);
  EXPECT_EQ(policy.prefill_key(), "");
  kv.truncate(0);
  policy.truncate(0);
  EXPECT_EQ(policy.prefill_key(), kDensePrefill);
  EXPECT_EQ(toy.pages().used_bytes(), other.bytes() + 2 * 2 * toy.pages().page_bytes());
}

}  // namespace
}  // namespace reprise
