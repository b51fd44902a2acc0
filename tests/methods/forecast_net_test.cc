#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "methods/attention_predictor/attention_predictor.h"
#include "methods/attention_predictor/net_file.h"
#include "methods/attention_predictor/network.h"
#include "methods/policy_memory.h"
#include "methods/random_net.h"
#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::Phase;
using test::random_net;
using testing::Toy;

ScoreRow random_row(std::mt19937& random, size_t heads, size_t blocks) {
  std::uniform_real_distribution<float> share(0.0f, 2.0f / static_cast<float>(blocks));
  ScoreRow row;
  row.reset(heads, blocks);
  for (float& x : row.scores) x = share(random);
  return row;
}

/// The network over the whole window, as published; columns of young blocks are zero.
std::vector<float> whole(const ForecastNet& net, const std::vector<std::vector<float>>& rows,
                         size_t first, size_t last) {
  const size_t columns = last - first, width = (columns + 2) * kernels::kNetInner;
  std::vector<std::vector<float>> input, inner(rows.size(), std::vector<float>(width));
  for (const auto& row : rows) {
    std::vector<float> cut(columns);
    for (size_t i = first; i < std::min(last, row.size()); ++i) {
      cut[i - first] = net.published ? row[i] : std::sqrt(row[i]);
    }
    input.push_back(cut);
  }
  const auto near = [&](const auto& from, size_t r, const float*(&out)[3]) {
    for (size_t i = 0; i < 3; ++i) {
      const bool present = r + i >= 1 && r + i - 1 < rows.size();
      out[i] = present ? from[r + i - 1].data() : nullptr;
    }
  };
  const float* in[3];
  for (size_t r = 0; r < rows.size(); ++r) {
    near(input, r, in);
    kernels::score_net_inner(net.net, in, columns, inner[r].data());
  }
  std::vector<float> sums(columns), row(columns);
  for (size_t r = 0; r < rows.size(); ++r) {
    near(inner, r, in);
    kernels::score_net_project(net.net, in, columns, row.data());
    for (size_t i = 0; i < columns; ++i) sums[i] += row[i];
  }
  for (float& x : sums) x = x / static_cast<float>(rows.size()) + net.net.bias3;
  return sums;
}

TEST(NetworkPredictor, KeptPartsEqualTheWholeNetwork) {
  for (const uint32_t rows : {4u, 5u, 16u, 64u}) {
    const auto net = std::make_shared<const ForecastNet>(random_net(rows, true));
    NetworkPredictor predictor(2, net, 0.7f, 16);
    std::mt19937 random(9);
    std::vector<std::vector<float>> history[2];
    size_t blocks = 6, last = 5;
    for (int step = 0; step < 150; ++step) {
      if (step % 7 == 3) blocks += step % 5 == 0 ? 2 : 1;
      const ScoreRow row = random_row(random, 2, blocks);
      predictor.push(row);
      for (size_t head = 0; head < 2; ++head) {
        const float* scores = &row.scores[head * blocks];
        history[head].emplace_back(scores, scores + blocks);
        if (history[head].size() > rows) history[head].erase(history[head].begin());
      }
      if (step % 3 == 1) continue;  // rows that nobody asked after are made up for
      last = std::max(last, blocks - 1 - static_cast<size_t>(step % 2));
      for (size_t head = 0; head < 2; ++head) {
        std::vector<float> got(last - 1);
        predictor.forecast(head, 1, last, got.data());
        const auto want = whole(*net, history[head], 1, last);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], want[i], 2e-5) << rows << " " << step << " " << i;
        }
      }
    }
  }
}

TEST(NetworkPredictor, TheOrderOfRowsMatters) {
  const auto net = std::make_shared<const ForecastNet>(random_net(16, true));
  std::mt19937 random(2);
  std::vector<ScoreRow> rows;
  rows.reserve(16);
  for (int i = 0; i < 16; ++i) rows.push_back(random_row(random, 1, 40));
  NetworkPredictor forward(1, net, 0.7f, 16), backward(1, net, 0.7f, 16);
  for (size_t i = 0; i < 16; ++i) {
    forward.push(rows[i]);
    backward.push(rows[15 - i]);
  }
  std::vector<float> a(40), b(40);
  forward.forecast(0, 0, 40, a.data());
  backward.forecast(0, 0, 40, b.data());
  EXPECT_NE(a, b);
}

// As published a row is what it read, and nothing elsewhere.
TEST(NetworkPredictor, AsPublishedGuessesNothing) {
  const auto net = std::make_shared<const ForecastNet>(random_net(8, true));
  NetworkPredictor predictor(2, net, 0.7f, 5);
  std::mt19937 random(6);
  std::vector<std::vector<float>> history[2];
  for (int step = 0; step < 30; ++step) {
    const size_t blocks = 30 + static_cast<size_t>(step) / 4;
    const ScoreRow whole_row = random_row(random, 2, blocks);
    ScoreRow part;
    part.begin_part(2, blocks);
    for (size_t head = 0; head < 2; ++head) {
      std::vector<float> seen(blocks);
      for (size_t i = head; i < blocks; i += 1 + random() % 5) {
        part.read.push_back(static_cast<int32_t>(i));
        part.scores.push_back(seen[i] = whole_row.scores_of(head)[i]);
      }
      part.offsets.push_back(static_cast<uint32_t>(part.read.size()));
      const auto all = whole_row.scores_of(head);
      if (step % 5 == 4) seen.assign(all.begin(), all.end());
      history[head].push_back(seen);
      if (history[head].size() > 8) history[head].erase(history[head].begin());
    }
    predictor.push(step % 5 == 4 ? whole_row : part);
    for (size_t head = 0; head < 2; ++head) {
      std::vector<float> got(blocks - 2);
      predictor.forecast(head, 1, blocks - 1, got.data());
      const auto want = whole(*net, history[head], 1, blocks - 1);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << step;
    }
  }
}

TEST(NetworkPredictor, StartsAtTheAverageWhenItsLastLayerIsZero) {
  ForecastNet net = random_net(8, false);
  net.net.conv3.fill(0.0f);
  net.net.bias3 = 0.0f;
  NetworkPredictor predictor(1, std::make_shared<const ForecastNet>(net), 0.7f, 16);
  AveragePredictor average(1, 0.7f, 16);
  std::mt19937 random(4);
  for (int i = 0; i < 20; ++i) {
    const ScoreRow row = random_row(random, 1, 30);
    predictor.push(row);
    average.push(row);
  }
  std::vector<float> got(30), want(30);
  predictor.forecast(0, 0, 30, got.data());
  average.forecast(0, 0, 30, want.data());
  for (size_t i = 0; i < 30; ++i) EXPECT_FLOAT_EQ(got[i], std::sqrt(want[i]));
}

/// A file with a network, removed at the end.
class NetFile {
 public:
  explicit NetFile(std::string_view text) {
    std::string name = (std::filesystem::temp_directory_path() / "reprise-net-XXXXXX").string();
    close(mkstemp(name.data()));
    path = name;
    std::ofstream(path, std::ios::binary) << text;
  }
  ~NetFile() { std::filesystem::remove(path); }
  std::string path;
};

Result<ForecastNet> load(const NetFile& file, const ModelConfig& config,
                         BlockPool pool = BlockPool::kSum) {
  return load_forecast_net(file.path, config, pool);
}

TEST(NetFile, GivesBackWhatWasWritten) {
  Toy toy({2, 4, 2, 32}, 10);
  const ForecastNet net = random_net(24, false);
  const NetFile file(forecast_net_file(net, toy.config(), {{"seed", "3"}}));
  const auto got = load(file, toy.config());
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->rows, 24u);
  EXPECT_FALSE(got->published);
  EXPECT_EQ(got->net.conv1, net.net.conv1);
  EXPECT_EQ(got->net.conv2, net.net.conv2);
  EXPECT_EQ(got->net.bias2, net.net.bias2);
  EXPECT_EQ(got->net.conv3, net.net.conv3);
  EXPECT_EQ(got->net.bias3, net.net.bias3);
}

TEST(NetFile, OfAnotherModelOrBlockSizeIsRefused) {
  Toy toy({2, 4, 2, 32}, 10);
  const std::string text = forecast_net_file(random_net(24, false), toy.config(), {});
  ModelConfig other = toy.config();
  other.name = "another";
  const NetFile file(text);
  const auto refused = load(file, other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("not for another"));
  std::string blocks = text;
  blocks.replace(blocks.find("\"block\":\"16\""), 12, "\"block\":\"32\"");
  const NetFile larger(blocks);
  const auto refused_blocks = load(larger, toy.config());
  ASSERT_FALSE(refused_blocks);
  EXPECT_THAT(refused_blocks.error().message, ::testing::HasSubstr("blocks of 32 tokens"));
}

TEST(NetFile, OfAnotherPoolIsRefused) {
  Toy toy({2, 4, 2, 32}, 10);
  ForecastNet net = random_net(24, false);
  for (const BlockPool pool : {BlockPool::kSum, BlockPool::kMax}) {
    net.pool = pool;
    const bool largest = pool == BlockPool::kMax;
    const NetFile file(forecast_net_file(net, toy.config(), {}));
    const auto got = load(file, toy.config(), pool);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(got->pool, pool);
    const auto refused = load(file, toy.config(), largest ? BlockPool::kSum : BlockPool::kMax);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(refused.error().message,
                ::testing::HasSubstr(largest ? "trained for pool=max, not for pool=sum"
                                             : "trained for pool=sum, not for pool=max"));
    const auto spec = fmt::format("attention_predictor:file={},pool=", file.path);
    EXPECT_EQ(bool(create_policy(policy_entries(), spec + "max", toy.config())), largest);
    EXPECT_EQ(bool(create_policy(policy_entries(), spec + "sum", toy.config())), !largest);
  }
}

// Memory is measured with a part of the model, which the network is not for.
TEST(NetFile, MemoryOfItsPolicyIsForetold) {
  const auto config = testing::toy_config({3, 4, 2, 32});
  const NetFile file(forecast_net_file(random_net(16, false), config, {}));
  ThreadPool pool(2);
  const auto bytes = [&](const std::string& spec, const ModelConfig& model) {
    const auto memory = PolicyMemory::measure(spec, model, pool);
    EXPECT_TRUE(memory) << memory.error().message;
    return memory ? memory->bytes(8192) : 0;
  };
  EXPECT_GT(bytes("attention_predictor:file=" + file.path, config),
            8 * bytes("attention_predictor", config));
  const auto other = testing::toy_config({4, 4, 2, 32});
  EXPECT_FALSE(PolicyMemory::measure("attention_predictor:file=" + file.path, other, pool));
}

TEST(NetFile, NamesThePoolWhereNobodyAsks) {
  Toy toy({2, 4, 2, 32}, 10);
  ForecastNet net = random_net(64, true);
  net.pool = BlockPool::kMax;
  const NetFile file(forecast_net_file(net, toy.config(), {}));
  const auto got = load_forecast_net(file.path, toy.config());
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->pool, BlockPool::kMax);
  EXPECT_TRUE(got->published);
  EXPECT_EQ(got->rows, 64u);
}

TEST(NetFile, ThePapersModeTakesThePapersNetworkAlone) {
  Toy toy({2, 4, 2, 32}, 10);
  ForecastNet net = random_net(64, true);
  net.pool = BlockPool::kMax;
  const NetFile published(forecast_net_file(net, toy.config(), {}));
  net.published = false;
  const NetFile residual(forecast_net_file(net, toy.config(), {}));
  const auto create = [&](const std::string& options) {
    return create_policy(policy_entries(), "attention_predictor:mode=paper" + options,
                         toy.config());
  };
  const auto policy = create(",period=9,pool=sum,file=" + published.path);
  ASSERT_TRUE(policy) << policy.error().message;
  const auto& options = static_cast<const AttentionPredictorPolicy&>(**policy).options();
  EXPECT_EQ(options.calibrate, "dense");
  EXPECT_EQ(options.period, 5u);
  EXPECT_EQ(options.sink, 64u);
  EXPECT_EQ(options.window, 64u);
  EXPECT_EQ(options.history, 64u);
  EXPECT_EQ(options.pool, "max");
  for (const std::string& other : {std::string(), ",file=" + residual.path}) {
    const auto refused = create(other);
    ASSERT_FALSE(refused) << other;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, ::testing::HasSubstr("--form published"));
  }
}

TEST(NetFile, DamageIsAnErrorAndNothingElse) {
  Toy toy({2, 4, 2, 32}, 10);
  const std::string text = forecast_net_file(random_net(24, false), toy.config(), {});
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string damaged = text;
    if (i % 2 == 0)
      damaged.resize(random() % text.size());
    else
      damaged[random() % 1200] = static_cast<char>(random());
    const NetFile file(damaged);
    (void)load(file, toy.config());  // must not crash
    if (i % 2 == 0) {
      EXPECT_FALSE(load(file, toy.config()));
    }
  }
}

class NetPolicy : public ::testing::TestWithParam<bool> {};  // published
INSTANTIATE_TEST_SUITE_P(Forms, NetPolicy, ::testing::Bool());

TEST_P(NetPolicy, GoesOnAfterForksAndFiles) {
  Toy toy({2, 4, 2, 32, kernels::KvType::kBF16}, 460);
  const bool published = GetParam();
  ForecastNet net = random_net(published ? 64 : 16, published);
  if (published) net.pool = BlockPool::kMax;
  const NetFile file(forecast_net_file(net, toy.config(), {}));
  const auto spec = fmt::format("attention_predictor:budget=128,mode={},file={}",
                                published ? "paper" : "default", file.path);
  toy.prompt_end = 400;
  std::vector<std::vector<float>> want;
  for (const bool saved : {false, true}) {
    auto policy = testing::make_policy(toy, spec);
    SequenceKv kv = toy.new_sequence();
    for (const size_t chunk : {100, 290, 10}) toy.step(kv, *policy, chunk, Phase::kPrefill);
    for (int i = 0; i < 12; ++i) toy.step(kv, *policy, 1, Phase::kDecode);
    if (saved) {
      const std::string state = policy->save_state();
      policy = testing::make_policy(toy, spec);
      ASSERT_TRUE(policy->restore_state(state, kv.length()));
      EXPECT_EQ(policy->save_state(), state);
    }
    const auto copy = policy->fork();
    SequenceKv copy_kv = kv;
    std::vector<std::vector<float>> outputs;
    for (int i = 0; i < 40; ++i) {
      outputs.push_back(toy.step(kv, *policy, 1, Phase::kDecode));
      EXPECT_EQ(toy.step(copy_kv, *copy, 1, Phase::kDecode), outputs.back());
    }
    if (saved) {
      EXPECT_EQ(outputs, want);
    }
    want = outputs;
  }
}

}  // namespace
}  // namespace reprise
