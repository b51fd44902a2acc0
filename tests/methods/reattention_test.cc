#include "methods/reattention/reattention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "kernels/ops.h"
#include "methods/reattention/votes.h"
#include "methods/selecting.h"
#include "model/rope.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Recorder;
using testing::Toy;
using testing::ToyShape;

constexpr const char* kSpec =
    "reattention:sink=5,local=40,span=6,spans=7,picks=3,decode-picks=2,activate=60,"
    "stride=1,score=raw";

/// Product of a query head with a key of its KV head that stands so far before it, as the model
/// turns both, in double.
double product(const Toy& toy, const float* q, const float* k, int32_t distance = 0) {
  const size_t dim = toy.config().head_dim, pairs = toy.rope().pairs();
  std::vector<float> turned[] = {{q, q + dim}, {k, k + dim}}, angles(pairs * 2);
  for (const int32_t which : {0, 1}) {
    toy.rope().cos_sin(which == 0 ? distance : 0, angles.data());
    kernels::rope(turned[which].data(), angles.data(), 1, dim, pairs);
  }
  return testing::dot(turned[0].data(), turned[1].data(), dim);
}

/// The keys that rows [first, first + count) read by the paper's definition (eqs. 1 to 3).
std::vector<int32_t> expected_keys(Toy& toy, size_t layer, size_t first, size_t count,
                                   size_t picks) {
  const ModelConfig& config = toy.config();
  const size_t end = first + count, dim = config.head_dim, group = config.n_head / config.n_kv_head;
  const size_t begin = 5, stop = std::min(first, end - 40);
  std::map<size_t, std::pair<int, double>> votes;  // key -> count, best score
  for (size_t row = first; row < end; ++row) {
    for (size_t head = 0; head < config.n_head; ++head) {
      std::vector<std::pair<double, size_t>> scores;
      for (size_t key = begin; key < stop; ++key) {
        const float* k = toy.k(layer, key) + head / group * dim;
        scores.emplace_back(product(toy, toy.q(layer, row) + head * dim, k), key);
      }
      std::sort(scores.rbegin(), scores.rend());
      for (size_t i = 0; i < std::min(picks, scores.size()); ++i) {
        auto& [number, best] = votes.try_emplace(scores[i].second, 0, -INFINITY).first->second;
        ++number;
        best = std::max(best, scores[i].first);
      }
    }
  }
  std::vector<std::tuple<int, double, size_t>> ranked;
  ranked.reserve(votes.size());
  for (const auto& [key, vote] : votes) ranked.emplace_back(vote.first, vote.second, key);
  std::sort(ranked.rbegin(), ranked.rend());
  std::set<int32_t> keys;
  for (size_t i = 0; i < std::min<size_t>(7, ranked.size()); ++i) {
    const auto winner = static_cast<int32_t>(std::get<2>(ranked[i]));
    for (int32_t key = winner - 3; key < winner + 3; ++key) {
      if (key >= 5 && key < static_cast<int32_t>(stop)) keys.insert(key);
    }
  }
  for (int32_t key = 0; key < 5; ++key) keys.insert(key);
  for (size_t key = stop; key < end; ++key) keys.insert(static_cast<int32_t>(key));
  return {keys.begin(), keys.end()};
}

/// Everything a model's configuration does to rotation, of heads of 64 dimensions.
std::map<std::string, ToyShape> scaled_shapes() {
  std::map<std::string, ToyShape> shapes;
  const auto add = [&](const char* name, RopeScaling scaling) -> RopeConfig& {
    ToyShape& shape = shapes[name] = {2, 6, 2, 64};
    shape.rope.scaling = scaling;
    shape.rope.factor = 4.0f;
    shape.rope.original_context = 128;
    return shape.rope;
  };
  add("linear", RopeScaling::kLinear);
  add("llama3", RopeScaling::kLlama3);
  add("yarn", RopeScaling::kYarn).attention_factor = 1.14f;
  RopeConfig& longrope = add("longrope", RopeScaling::kLongRope);
  longrope.attention_factor = 1.19f;
  for (size_t pair = 0; pair < 32; ++pair) {
    longrope.short_factors.push_back(1.0f + 0.1f * static_cast<float>(pair));
  }
  longrope.long_factors = longrope.short_factors;
  shapes["partial"] = {2, 6, 2, 64};
  shapes["partial"].rope_dims = 40;
  shapes["partial_yarn"] = shapes["yarn"];
  shapes["partial_yarn"].rope_dims = 40;
  return shapes;
}

class ReAttention : public ::testing::TestWithParam<ToyShape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, ReAttention,
                         ::testing::Values(ToyShape{2, 2, 2, 64}, ToyShape{2, 6, 2, 80},
                                           ToyShape{2, 9, 1, 128}, ToyShape{2, 8, 4, 32}));

class ReAttentionRope : public ::testing::TestWithParam<std::string> {
 protected:
  static ToyShape shape() { return scaled_shapes().at(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Scalings, ReAttentionRope,
                         ::testing::Values("linear", "llama3", "yarn", "longrope", "partial",
                                           "partial_yarn"),
                         [](const auto& test) { return test.param; });

void expect_definition(const ToyShape& shape) {
  Toy toy(shape, 330);
  Recorder policy(toy, kSpec);
  SequenceKv kv = toy.new_sequence();
  const size_t heads = toy.config().n_head, dim = toy.config().head_dim;
  size_t token = 0;
  for (const size_t count : {60, 1, 39, 40, 17, 40, 40, 1, 1, 1}) {
    const auto out = toy.step(kv, policy, count, count > 1 ? Phase::kPrefill : Phase::kDecode);
    for (const uint32_t layer : {0u, 1u}) {
      const Selection& selection = policy.seen[layer].selection;
      ASSERT_EQ(selection.all, token + count <= 60);
      if (selection.all) continue;
      ASSERT_TRUE(selection.parts.at(0).packed);
      const auto keys = testing::keys_of(selection.parts[0], 0);
      ASSERT_EQ(keys, expected_keys(toy, layer, token, count, count > 1 ? 3 : 2)) << token;
      std::vector<int32_t> packed(330, -1);
      for (size_t i = 0; i < keys.size(); ++i) {
        packed[static_cast<size_t>(keys[i])] = static_cast<int32_t>(i);
      }
      for (size_t row = 0; row < count; row += 7) {
        for (size_t head = 0; head < heads; ++head) {
          const auto want = toy.expected(
              layer, token + row, head, [&](size_t key) { return packed[key] >= 0; },
              [&](size_t key) {
                return packed[token + row] - packed[key] + static_cast<int32_t>(key);
              });
          for (size_t d = 0; d < dim; ++d) {
            ASSERT_NEAR(out[((layer * count + row) * heads + head) * dim + d], want[d],
                        testing::kFloatTolerance);
          }
        }
      }
    }
    token += count;
  }
}

TEST_P(ReAttention, ReadsWhatTheDefinitionSaysInPrefillAndDecode) { expect_definition(GetParam()); }

TEST_P(ReAttentionRope, ReadsWhatTheDefinitionSaysInPrefillAndDecode) {
  expect_definition(shape());
}

void expect_full(const ToyShape& shape) {
  Toy toy(shape, 420);
  const auto policy = testing::make_policy(
      toy,
      "reattention:stride=1,sink=3,local=40,span=64,spans=64,picks=32,decode-picks=32,activate=1");
  const auto full = testing::make_policy(toy, "full:keys=position-free");
  SequenceKv a = toy.new_sequence(), b = toy.new_sequence();
  for (const size_t count : {200, 40, 40, 40, 1, 1, 40, 1}) {
    const Phase phase = count > 1 ? Phase::kPrefill : Phase::kDecode;
    ASSERT_EQ(toy.step(a, *policy, count, phase), toy.step(b, *full, count, phase));
  }
}

TEST(ReAttentionPolicy, EverythingSelectedEqualsFullAttentionBitByBit) {
  expect_full({2, 6, 2, 64, KvType::kBF16});
}

TEST_P(ReAttentionRope, EverythingSelectedEqualsFullAttentionBitByBit) {
  ToyShape bf16 = shape();
  bf16.type = KvType::kBF16;
  expect_full(bf16);
}

TEST(ReAttentionPolicy, PositionsAreThoseOfATextWithoutTheUnreadKeys) {
  // Two texts with the same sink, spans and window, and more or less between them.
  Toy longer({1, 4, 2, 32}, 1200), shorter({1, 4, 2, 32}, 300);
  for (Toy* toy : {&longer, &shorter}) {
    const size_t length = toy == &longer ? 1200 : 300;
    for (size_t i = 0; i < length; ++i) {
      const size_t from_end = length - i;
      const bool kept = i < 8 || from_end <= 64;
      for (size_t d = 0; d < 64; ++d) {
        const float value = std::sin(static_cast<float>(d * 37 + (i < 8 ? i : from_end * 11)));
        toy->k(0, i)[d] = kept ? value : 0.01f;
        toy->v(0, i)[d] = kept ? value : 0.5f;
      }
      for (size_t d = 0; d < 128; ++d) {
        toy->q(0, i)[d] = std::sin(static_cast<float>(d * 5 + from_end));
      }
    }
  }
  // Keys between sink and window are all alike: the latest ones win, and as many in both texts.
  const char* spec =
      "reattention:stride=1,sink=8,local=64,span=4,spans=3,decode-picks=3,activate=80";
  std::vector<std::vector<float>> outputs;
  for (Toy* toy : {&longer, &shorter}) {
    const auto policy = testing::make_policy(*toy, spec);
    SequenceKv kv = toy->new_sequence();
    const size_t length = toy == &longer ? 1200 : 300;
    toy->step(kv, *policy, length - 1, Phase::kPrefill);
    outputs.push_back(toy->step(kv, *policy, 1, Phase::kDecode));
  }
  for (size_t i = 0; i < outputs[0].size(); ++i) {  // pieces of other lengths are summed
    ASSERT_NEAR(outputs[0][i], outputs[1][i], 1e-6);
  }
}

TEST(ReAttentionPolicy, EveryHeadVotesWithTheKeysOfItsOwnKvHead) {
  Toy toy({1, 6, 3, 32}, 400);
  for (size_t i = 0; i < 400; ++i) {
    std::fill_n(toy.k(0, i), 3 * 32, 0.0f);
    std::fill_n(toy.q(0, i), 6 * 32, 1.0f);
  }
  // One needle per KV head, where the other heads see nothing.
  for (size_t head = 0; head < 3; ++head)
    std::fill_n(toy.k(0, 50 + 80 * head) + head * 32, 32, 1.f);
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    Recorder policy(toy,
                    "reattention:sink=4,local=64,span=2,spans=3,picks=1,decode-picks=1,"
                    "activate=80,stride=1,agree=0");
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 399, Phase::kPrefill);
    toy.step(kv, policy, 1, phase);
    const auto& ranges = policy.seen[0].selection.parts.at(0).ranges;
    ASSERT_EQ(ranges.size(), 5u);
    for (size_t head = 0; head < 3; ++head) {
      EXPECT_EQ(ranges[head + 1].end, static_cast<int32_t>(50 + 80 * head) + 1);
    }
  }
}

void expect_mean_scores(const ToyShape& shape) {
  Toy toy(shape, 300);
  Recorder policy(toy,
                  "reattention:sink=4,local=40,span=1,spans=20,decode-picks=1,activate=50,"
                  "score=mean,agree=0");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 299, Phase::kPrefill);
  toy.step(kv, policy, 1, Phase::kDecode);
  const auto read = testing::keys_of(policy.seen[0].selection.parts.at(0), 0);
  const size_t dim = shape.head_dim, group = shape.n_head / shape.n_kv_head;
  std::set<int32_t> want;
  for (size_t head = 0; head < shape.n_head; ++head) {
    std::pair<double, int32_t> best = {-INFINITY, 0};
    for (size_t key = 4; key < 260; ++key) {
      double sum = 0.0;
      for (int32_t distance = 40; distance < 60; ++distance) {
        sum +=
            product(toy, toy.q(0, 299) + head * dim, toy.k(0, key) + head / group * dim, distance);
      }
      best = std::max(best, {sum, static_cast<int32_t>(key)});
    }
    want.insert(best.second);
  }
  EXPECT_EQ(std::set<int32_t>(read.begin() + 4, read.end() - 40), want);
}

TEST(ReAttentionPolicy, MeanScoresAreThoseOfRotatedQueriesOverAllDistancesOfSpans) {
  expect_mean_scores({1, 4, 2, 32});
}

TEST_P(ReAttentionRope, MeanScoresAreThoseOfRotatedQueriesOverAllDistancesOfSpans) {
  expect_mean_scores(shape());
}

TEST(ReAttentionPolicy, StrideAndIntervalOfOneChangeNothingAndMoreReadOlderSpans) {
  Toy toy({1, 4, 2, 32}, 500);
  const auto spans_of = [&](const std::string& more, int steps) {
    Recorder policy(toy, std::string(kSpec) + more);
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 400, Phase::kPrefill);
    toy.prompt_end = 400;
    for (int i = 0; i < steps; ++i) toy.step(kv, policy, 1, Phase::kDecode);
    const auto& ranges = policy.seen[0].selection.parts.at(0).ranges;
    std::vector<std::pair<int32_t, int32_t>> spans;
    for (size_t i = 1; i + 1 < ranges.size(); ++i)
      spans.emplace_back(ranges[i].begin, ranges[i].end);
    return spans;
  };
  EXPECT_EQ(spans_of(",stride=1,interval=1", 3), spans_of("", 3));
  EXPECT_EQ(spans_of(",interval=3", 1), spans_of(",interval=3", 3));
  EXPECT_EQ(spans_of(",interval=3", 3), spans_of("", 1));
  EXPECT_EQ(spans_of(",interval=3", 4), spans_of("", 4));
}

TEST(ReAttentionPolicy, TheLastRowsOfAPromptAreCellsOfTheirOwn) {
  Toy toy({1, 4, 2, 32}, 500);
  const auto policy = testing::make_policy(toy, std::string(kSpec) + ",chunk=40,alone=8");
  std::vector<int32_t> cells;
  for (int32_t at = 0; at < 100; at += cells.back()) {
    cells.push_back(policy->prefill_cell(at, 100));
    ASSERT_GT(cells.back(), 0);
  }
  EXPECT_EQ(cells, (std::vector<int32_t>{40, 40, 12, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(policy->prefill_cell(56, 60), 24) << "all of it is read: the grid alone counts";
  EXPECT_EQ(policy->prefill_cell(99, 101), 1) << "a second turn that is shorter than eight rows";
  const auto never = testing::make_policy(toy, std::string(kSpec) + ",chunk=40,alone=0");
  EXPECT_EQ(never->prefill_cell(85, 100), 15);
}

TEST(ReAttentionPolicy, OnlyALongPromptIsReadBySelectionFromEarlyOn) {
  Toy toy({1, 4, 2, 32}, 500);
  const auto first_selected = [&](const std::string& more, int32_t prompt_end) {
    Recorder policy(toy, std::string(kSpec) + more);
    SequenceKv kv = toy.new_sequence();
    toy.prompt_end = prompt_end;
    for (int32_t length = 1; length <= prompt_end; ++length) {
      toy.step(kv, policy, 1, Phase::kPrefill);
      if (!policy.seen[0].selection.all) return length;
    }
    return 0;
  };
  EXPECT_EQ(first_selected(",early=50", 60), 0);  // activate
  EXPECT_EQ(first_selected(",early=50", 61), 51);
  EXPECT_EQ(first_selected(",early=50", 200), 51);
  EXPECT_EQ(first_selected(",early=100", 200), 61) << "later than activate";
}

TEST(ReAttentionPolicy, WithoutVotingRowsOnlyRowsOfTheirOwnReadSpans) {
  Toy toy({1, 4, 2, 32}, 500);
  const auto ranges_of = [&](const std::string& stride, size_t rows) {
    Recorder policy(toy, std::string(kSpec) + ",stride=" + stride);
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 400, Phase::kPrefill);
    toy.step(kv, policy, rows, Phase::kPrefill);
    const Selection& selection = policy.seen[0].selection;
    EXPECT_EQ(selection.index_bytes_read == 0, stride == "0" && rows > 1);
    std::vector<std::pair<int32_t, int32_t>> ranges;
    for (const KeyRange& range : selection.parts.at(0).ranges) {
      ranges.emplace_back(range.begin, range.end);
    }
    return ranges;
  };
  EXPECT_EQ(ranges_of("0", 30), (std::vector<std::pair<int32_t, int32_t>>{{0, 5}, {390, 430}}));
  EXPECT_GT(ranges_of("1", 30).size(), 3u);
  EXPECT_EQ(ranges_of("0", 1), ranges_of("1", 1));
}

TEST(ReAttentionPolicy, OneOfSeveralCellsVotesWhereTheStrideIsLonger) {
  Toy toy({1, 4, 2, 32}, 500);
  Recorder policy(toy, std::string(kSpec) + ",stride=100");  // cells have 40 rows
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 80, Phase::kPrefill);
  std::vector<int32_t> ends;
  while (kv.length() < 440) {
    policy.seen.clear();
    toy.step(kv, policy, 40, Phase::kPrefill);
    const Selection& selection = policy.seen[0].selection;
    const size_t ranges = selection.parts.at(0).ranges.size();
    EXPECT_EQ(ranges > 2, selection.index_bytes_read > 0);  // more than sinks and window
    if (selection.index_bytes_read > 0) ends.push_back(kv.length());
  }
  EXPECT_EQ(ends, (std::vector<int32_t>{120, 200, 320, 400}));
}

TEST(ReAttentionPolicy, APromptRowOfItsOwnReadsWhatADecodedTokenWould) {
  Toy toy({1, 4, 2, 32}, 500);
  const auto ranges_of = [&](Phase phase) {
    Recorder policy(toy, kSpec);
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 400, Phase::kPrefill);
    toy.step(kv, policy, 1, phase);
    std::vector<std::pair<int32_t, int32_t>> ranges;
    for (const KeyRange& range : policy.seen[0].selection.parts.at(0).ranges) {
      ranges.emplace_back(range.begin, range.end);
    }
    return ranges;
  };
  EXPECT_GT(ranges_of(Phase::kDecode).size(), 3u);
  EXPECT_EQ(ranges_of(Phase::kPrefill), ranges_of(Phase::kDecode));
}

/// By definition: the picks of every head that weigh at least the share of all near keys together.
std::set<int32_t> expected_heavy_keys(Toy& toy, size_t row, size_t picks, double share) {
  const ModelConfig& config = toy.config();
  const size_t dim = config.head_dim, group = config.n_head / config.n_kv_head;
  const size_t sink = 5, near = 45, stop = row + 1 - 40;
  std::set<int32_t> keys;
  for (size_t head = 0; head < config.n_head; ++head) {
    const float* q = toy.q(0, row) + head * dim;
    const auto k = [&](size_t key) { return toy.k(0, key) + head / group * dim; };
    double sum = 0.0;
    for (size_t i = 0; i < near; ++i) {
      const float* key = k(i < sink ? i : stop + i - sink);
      const double logit = product(toy, q, key, static_cast<int32_t>(near - 1 - i));
      sum += std::exp(logit * config.attention_scale);
    }
    std::vector<std::pair<double, size_t>> scores;
    for (size_t key = sink; key < stop; ++key) scores.emplace_back(product(toy, q, k(key)), key);
    std::sort(scores.rbegin(), scores.rend());
    for (size_t i = 0; i < std::min(picks, scores.size()); ++i) {
      const bool heavy = std::exp(scores[i].first * config.attention_scale) >= share * sum;
      if (heavy) keys.insert(static_cast<int32_t>(scores[i].second));
    }
  }
  return keys;
}

/// Calls check(toy, row, the far keys that it read) for the last rows of a prompt and the decoded
/// ones in turns, each of which chooses for itself.
template <class Check>
void for_rows_of_their_own(const std::string& options, const Check& check,
                           const ToyShape& shape = {1, 6, 2, 64}) {
  Toy toy(shape, 330);
  toy.prompt_end = 300;
  Recorder policy(
      toy,
      "reattention:sink=5,local=40,span=1,spans=200,activate=60,stride=0,score=raw," + options);
  SequenceKv kv = toy.new_sequence();
  for (size_t token = 0; token < 300; token += 20) toy.step(kv, policy, 20, Phase::kPrefill);
  for (size_t row = 300; row < 330; ++row) {
    toy.step(kv, policy, 1, row % 2 == 0 ? Phase::kPrefill : Phase::kDecode);
    std::set<int32_t> keys;
    for (const int32_t key : testing::keys_of(policy.seen[0].selection.parts.at(0), 0)) {
      if (key >= 5 && key < static_cast<int32_t>(row) - 39) keys.insert(key);
    }
    check(toy, row, keys);
  }
}

TEST(ReAttentionPolicy, ARowOfItsOwnReadsOnlyKeysThatWeighTheirShareOfTheNearOnes) {
  size_t read = 0, left = 0;
  for (const double share : {0.02, 0.05, 0.2}) {
    const auto check = [&](Toy& toy, size_t row, const std::set<int32_t>& keys) {
      ASSERT_EQ(keys, expected_heavy_keys(toy, row, 20, share)) << row;
      read += keys.size();
      left += expected_heavy_keys(toy, row, 20, 0.0).size() - keys.size();
    };
    for_rows_of_their_own("decode-picks=20,least=" + std::to_string(share), check);
  }
  EXPECT_GT(read, 100u);
  EXPECT_GT(left, 100u);
}

/// By definition, for score=raw: the best keys of the heads that may vote, where the best leads the
/// 16th by so much as a logit.
std::set<int32_t> expected_leading_keys(Toy& toy, size_t row, size_t picks, double lead,
                                        const std::set<size_t>& heads) {
  const ModelConfig& config = toy.config();
  const size_t dim = config.head_dim, group = config.n_head / config.n_kv_head;
  std::set<int32_t> keys;
  for (const size_t head : heads) {
    std::vector<std::pair<double, size_t>> scores;
    for (size_t key = 5; key < row + 1 - 40; ++key) {
      const float* k = toy.k(0, key) + head / group * dim;
      scores.emplace_back(product(toy, toy.q(0, row) + head * dim, k), key);
    }
    std::sort(scores.rbegin(), scores.rend());
    if ((scores[0].first - scores[15].first) * config.attention_scale < lead) continue;
    for (size_t i = 0; i < picks; ++i) keys.insert(static_cast<int32_t>(scores[i].second));
  }
  return keys;
}

TEST_P(ReAttentionRope, SharesAndLeadsAreOfLogitsAsTheModelScalesThem) {
  const std::set<size_t> every = {0, 1, 2, 3, 4, 5};
  for_rows_of_their_own(
      "decode-picks=20,least=0.05",
      [](Toy& toy, size_t row, const std::set<int32_t>& keys) {
        ASSERT_EQ(keys, expected_heavy_keys(toy, row, 20, 0.05)) << row;
      },
      shape());
  for_rows_of_their_own(
      "decode-picks=3,lead=0.5",
      [&](Toy& toy, size_t row, const std::set<int32_t>& keys) {
        ASSERT_EQ(keys, expected_leading_keys(toy, row, 3, 0.5, every)) << row;
      },
      shape());
}

TEST(ReAttentionPolicy, ARowOfItsOwnReadsSpansOfVotingHeadsWhoseBestKeyLeads) {
  const std::set<size_t> every = {0, 1, 2, 3, 4, 5};
  const std::vector<std::tuple<std::string, double, std::set<size_t>>> cases = {
      {"", 0.0, every},
      {",lead=0.5", 0.5, every},
      {",lead=0.8", 0.8, every},
      {",heads=0:1/0:5", 0.0, {1, 5}},
      {",heads=0:3,lead=0.5", 0.5, {3}}};
  std::vector<size_t> read(cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [more, lead, heads] = cases[i];
    const auto check = [&read = read[i], lead = lead, heads = heads](
                           Toy& toy, size_t row, const std::set<int32_t>& keys) {
      ASSERT_EQ(keys, expected_leading_keys(toy, row, 3, lead, heads)) << row;
      read += keys.size();
    };
    for_rows_of_their_own("decode-picks=3" + more, check);
  }
  EXPECT_GT(read[0], read[1]);
  EXPECT_GT(read[1], read[2]);
  EXPECT_GT(read[2], 0u);
  EXPECT_GT(read[4], 0u);
}

TEST(ReAttentionPolicy, LayersWithoutVotingHeadsAreNotScanned) {
  Toy toy({2, 4, 2, 32}, 500);
  Recorder policy(toy, std::string(kSpec) + ",heads=1:2");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 400, Phase::kPrefill);
  toy.step(kv, policy, 1, Phase::kDecode);
  const Selection &without = policy.seen[0].selection, &with = policy.seen[1].selection;
  EXPECT_EQ(without.index_bytes_read, 0u);
  EXPECT_EQ(without.parts.at(0).ranges.size(), 2u);
  EXPECT_GT(with.index_bytes_read, 0u);
  EXPECT_GT(with.parts.at(0).ranges.size(), 2u);
}

TEST(ReAttentionPolicy, LayersTakeTurnsToScanWhereRowsShareSpans) {
  Toy toy({6, 4, 2, 32}, 500);
  Recorder policy(toy, std::string(kSpec) + ",interval=3");
  SequenceKv kv = toy.new_sequence();
  toy.prompt_end = 400;
  toy.step(kv, policy, 400, Phase::kPrefill);
  for (int row = 0; row < 9; ++row) {
    toy.step(kv, policy, 1, Phase::kDecode);
    for (int layer = 0; layer < 6; ++layer) {
      const bool scans = policy.seen[static_cast<size_t>(layer)].selection.index_bytes_read > 0;
      EXPECT_EQ(scans, row == 0 || (row + layer) % 3 == 0) << row << ", " << layer;
    }
  }
}

TEST(ReAttentionPolicy, ForksAndTruncatedSequencesGoOnAsIfAlone) {
  Toy toy({2, 6, 2, 32}, 400);
  const std::string spec = std::string(kSpec) + ",interval=4";
  const auto policy = testing::make_policy(toy, spec), fresh = testing::make_policy(toy, spec);
  SequenceKv kv = toy.new_sequence(), fresh_kv = toy.new_sequence();
  const auto decode = [&](SequenceKv& which, Policy& how, int steps) {
    std::vector<float> all;
    for (int i = 0; i < steps; ++i) {
      const auto out = toy.step(which, how, 1, Phase::kDecode);
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  };
  toy.step(kv, *policy, 250, Phase::kPrefill);
  const auto copy = policy->fork();
  SequenceKv copy_kv = kv;
  decode(kv, *policy, 70);
  for (auto [which, how] : {std::pair{&kv, policy.get()}, {&copy_kv, copy.get()}}) {
    how->truncate(250);
    which->truncate(250);
  }
  testing::change_tokens(toy, 250, 350);
  toy.step(fresh_kv, *fresh, 250, Phase::kPrefill);
  const auto want = decode(fresh_kv, *fresh, 100);
  EXPECT_EQ(decode(kv, *policy, 100), want);
  EXPECT_EQ(decode(copy_kv, *copy, 100), want);
}

TEST(ReAttentionPolicy, RowsOfTheirOwnReadTheSameInOnePassAsInMany) {
  for (const std::string options :
       {"score=mean", "score=raw,least=0.5", "lead=0.3", "heads=0:1/0:4", "fill=true,alone=9"}) {
    Toy toy({2, 6, 2, 64, KvType::kBF16}, 330);
    toy.prompt_end = 320;
    const std::string spec =
        "reattention:sink=5,local=40,span=6,spans=7,activate=60,stride=0," + options;
    std::vector<std::vector<float>> outputs;
    for (const bool together : {false, true}) {
      const auto policy = testing::make_policy(toy, spec);
      SequenceKv kv = toy.new_sequence();
      for (size_t token = 0; token < 300; token += 20) toy.step(kv, *policy, 20, Phase::kPrefill);
      std::vector<float>& out = outputs.emplace_back(2 * 20 * toy.width());
      const size_t rows = together ? 20 : 1;
      for (size_t row = 0; row < 20; row += rows) {
        const auto some = toy.step(kv, *policy, rows, Phase::kPrefill, together);
        for (size_t layer = 0; layer < 2; ++layer) {
          std::copy_n(&some[layer * rows * toy.width()], rows * toy.width(),
                      &out[(layer * 20 + row) * toy.width()]);
        }
      }
      const auto decoded = toy.step(kv, *policy, 1, Phase::kDecode);
      out.insert(out.end(), decoded.begin(), decoded.end());
    }
    EXPECT_EQ(outputs[0], outputs[1]) << options;
  }
}

TEST(ReAttentionPolicy, OptionsThatDoNotFitTheModelAreRefused) {
  ModelConfig config = testing::toy_config({});
  config.context = 1024;
  const auto message = [&](const char* spec) {
    const auto policy = create_policy(policy_entries(), spec, config);
    return policy ? std::string("fine") : policy.error().message;
  };
  EXPECT_EQ(message("reattention"), "fine");
  EXPECT_NE(message("reattention:local=512,spans=100").find("more than the 1024"),
            std::string::npos);
  EXPECT_NE(message("reattention:local=128,chunk=129").find("chunk=129"), std::string::npos);
  EXPECT_EQ(message("reattention:heads=0:0/1:1"), "fine");
  for (const char* heads : {"", "0", "0:", ":0", "0:1:2", "0:99", "99:0", "0:0/", "a:b", "-1:0"}) {
    const auto spec = std::string("reattention:heads=") + heads;
    EXPECT_NE(message(spec.c_str()).find("LAYER:HEAD"), std::string::npos) << spec;
  }
  const auto policy = create_policy(policy_entries(), "reattention", config);
  EXPECT_TRUE((*policy)->unbounded());
  EXPECT_TRUE((*policy)->position_free());
  EXPECT_EQ((*policy)->prefill_grid(), 128);  // its window
}

// Every head has a pick of its own, as far as the trained context has room for their spans.
TEST(ReAttentionPolicy, ReadsASpanForEachHeadUnlessPromptRowsVote) {
  ModelConfig config = testing::toy_config({1, 6, 2, 32});
  const auto settings = [&](const std::string& spec) {
    const auto policy = create_policy(policy_entries(), "reattention:local=128" + spec, config);
    return dynamic_cast<const ReAttentionPolicy&>(**policy).settings();
  };
  config.context = 1024;
  EXPECT_EQ(settings("").spans, 6u);
  EXPECT_EQ(settings("").decode_picks, 1u);
  EXPECT_EQ(settings(",stride=1").spans, (512u - 192) / 32);
  config.context = 350;
  EXPECT_EQ(settings("").spans, (350u - 192) / 32);
}

TEST(Votes, OrderByCountThenScoreThenRecency) {
  std::vector<kernels::RankedKey> picks = {{1, 7}, {5, 3}, {2, 7}, {5, 9}, {0, -1}, {9, 4}};
  const auto candidates = count_votes(picks);
  std::vector<int32_t> order;
  order.reserve(candidates.size());
  for (const Candidate& candidate : candidates) order.push_back(candidate.key);
  EXPECT_EQ(order, (std::vector<int32_t>{7, 4, 9, 3}));
  EXPECT_EQ(candidates[0].votes, 2u);
  EXPECT_EQ(candidates[0].score, 2.0f);
}

TEST(Votes, SoftOnesAreSharesOfOneVote) {
  // Two lists of two: nearly all for key 7 and half each; the third has one pick.
  const std::vector<kernels::RankedKey> picks = {{9, 7}, {1, 4}, {2, 5}, {2, 4}, {3, 8}, {0, -1}};
  const auto candidates = count_soft_votes(picks, 2, 0.5f);
  std::map<int32_t, uint32_t> votes;
  for (const Candidate& candidate : candidates) votes[candidate.key] = candidate.votes;
  const auto most = static_cast<uint32_t>(std::lround(1024 / (1 + std::exp(-4.0))));
  EXPECT_EQ(votes,
            (std::map<int32_t, uint32_t>{{7, most}, {4, 1024 - most + 512}, {5, 512}, {8, 1024}}));
  EXPECT_EQ(candidates[0].key, 8);
  EXPECT_EQ(candidates[2].score, 2.0f);
}

// One head is sure of a key; to the others all are alike, so that they pick the same recent ones.
TEST(ReAttentionPolicy, SoftVotesGiveASureHeadItsKey) {
  Toy toy({1, 4, 4, 32}, 300);
  for (size_t i = 0; i < 300; ++i) {
    std::fill_n(toy.k(0, i), 4 * 32, 0.0f);
    std::fill_n(toy.q(0, i), 4 * 32, 1.0f);
  }
  std::fill_n(toy.k(0, 50), 32, 2.0f);
  const auto winner = [&](const std::string& more) {
    Recorder policy(toy,
                    "reattention:sink=4,local=64,span=2,spans=1,decode-picks=8,activate=80,"
                    "score=raw" +
                        more);
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 299, Phase::kPrefill);
    toy.step(kv, policy, 1, Phase::kDecode);
    return policy.seen[0].selection.parts.at(0).ranges.at(1).begin + 1;
  };
  EXPECT_NE(winner(""), 50);
  EXPECT_EQ(winner(",soft=true"), 50);
}

TEST(Votes, SpansAreClippedMergedAndFilledUpToTheBudget) {
  const std::vector<Candidate> candidates = {
      {20, 4, 0}, {1, 3, 0}, {22, 2, 0}, {99, 1, 0}, {50, 1, 0}};
  const auto ranges = [&](size_t count) {
    std::vector<std::pair<int32_t, int32_t>> found;
    for (const KeyRange& range : cover(std::span(candidates).first(count), 8, {0, 100})) {
      found.emplace_back(range.begin, range.end);
    }
    return found;
  };
  EXPECT_EQ(ranges(1), (std::vector<std::pair<int32_t, int32_t>>{{16, 24}}));
  EXPECT_EQ(ranges(3), (std::vector<std::pair<int32_t, int32_t>>{{0, 5}, {16, 26}}));
  EXPECT_EQ(ranges(4).back(), (std::pair<int32_t, int32_t>{95, 100}));
  EXPECT_EQ(keys_in(fill(candidates, 2, 16, 8, {0, 100})), 15);  // 5 + 10; the next would be 20
  EXPECT_EQ(keys_in(fill(candidates, 2, 1000, 8, {0, 100})), 28);
  EXPECT_TRUE(cover({}, 8, {0, 100}).empty());
}

}  // namespace
}  // namespace reprise
