#include "methods/baselines/streaming.h"

#include <gtest/gtest.h>

#include "attention/toy.h"
#include "methods/baselines/full.h"

namespace reprise {
namespace {

using kernels::Phase;
using testing::Toy;
using testing::ToyShape;

StreamingOptions options(uint32_t sink, uint32_t window, std::string positions = "cache") {
  return {sink, window, std::move(positions), "window"};
}

void expect_matches(Toy& toy, const float* row, size_t layer, size_t token,
                    const StreamingOptions& o) {
  for (size_t head = 0; head < toy.config().n_head; ++head) {
    const auto want = toy.expected(
        layer, token, head, [&](size_t key) { return key < o.sink || key + o.window > token; },
        [&](size_t key) {
          const bool capped = key < o.sink && o.positions == "cache";
          return static_cast<int32_t>(capped ? std::min<size_t>(token, o.sink + o.window - 1)
                                             : token);
        });
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(row[head * want.size() + i], want[i], testing::kFloatTolerance)
          << "token " << token << " head " << head;
    }
  }
}

struct Setting {
  uint32_t sink, window;
  const char* positions;
};

class Streaming : public ::testing::TestWithParam<Setting> {};

TEST_P(Streaming, PrefillAndDecodeMatchTheDefinition) {
  const StreamingOptions o = options(GetParam().sink, GetParam().window, GetParam().positions);
  Toy toy({}, 160);
  StreamingPolicy policy(o, toy.config());
  SequenceKv kv = toy.new_sequence();
  size_t token = 0;
  for (const size_t chunk : {50, 70, 30}) {
    const auto out = toy.step(kv, policy, chunk, Phase::kPrefill);
    for (size_t i = 0; i < chunk; i += 7) {
      expect_matches(toy, &out[(chunk + i) * toy.width()], 1, token + i, o);
    }
    token += chunk;
  }
  for (; token < 160; ++token) {
    const auto out = toy.step(kv, policy, 1, Phase::kDecode);
    expect_matches(toy, &out[toy.width()], 1, token, o);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, Streaming,
                         ::testing::Values(Setting{4, 32, "cache"}, Setting{4, 32, "text"},
                                           Setting{0, 16, "cache"}, Setting{20, 1, "cache"},
                                           Setting{16, 48, "cache"}, Setting{4, 1000, "cache"}));

TEST(StreamingPolicy, MemoryStaysBounded) {
  Toy toy({}, 600);
  StreamingPolicy policy(options(4, 64), toy.config());
  SequenceKv kv = toy.new_sequence();
  uint64_t most = 0;
  toy.step(kv, policy, 100, Phase::kPrefill);
  while (kv.length() < 600) {
    toy.step(kv, policy, 1, Phase::kDecode);
    most = std::max(most, toy.pages().used_bytes());
  }
  // Sinks, the window and one page at each of its ends.
  const uint64_t pages = 1 + 64 / 16 + 2;
  EXPECT_LE(most, pages * toy.config().n_layer * toy.pages().page_bytes());
  EXPECT_EQ(toy.executor().cost(0).keys_read, 2u * 2 * (4 + 64));
}

TEST(StreamingPolicy, AWindowBeyondTheContextEqualsFullAttention) {
  Toy toy({}, 120);
  StreamingPolicy streaming(options(4, 500), toy.config());
  FullPolicy full({}, toy.config());
  SequenceKv a = toy.new_sequence(), b = toy.new_sequence();
  const auto want = toy.step(a, full, 119, Phase::kPrefill);
  const auto got = toy.step(b, streaming, 119, Phase::kPrefill);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6) << i;
  const auto want_row = toy.step(a, full, 1, Phase::kDecode);
  const auto got_row = toy.step(b, streaming, 1, Phase::kDecode);
  for (size_t i = 0; i < want_row.size(); ++i) ASSERT_NEAR(got_row[i], want_row[i], 2e-6) << i;
}

TEST(StreamingPolicy, ChunksDoNotChangeABit) {
  const auto run = [](std::vector<size_t> chunks) {
    ToyShape shape;
    shape.type = kernels::KvType::kBF16;
    Toy toy(shape, 400);
    StreamingPolicy policy(options(4, 90), toy.config());
    SequenceKv kv = toy.new_sequence();
    std::vector<float> out;
    for (const size_t chunk : chunks) out = toy.step(kv, policy, chunk, Phase::kPrefill);
    return std::vector<float>(out.end() - static_cast<std::ptrdiff_t>(toy.width()), out.end());
  };
  const auto want = run({400});
  EXPECT_EQ(run({128, 128, 144}), want);
  EXPECT_EQ(run({1, 250, 149}), want);
}

TEST(StreamingPolicy, ReadsWholePromptsAndThenAWindow) {
  Toy toy({}, 160);
  StreamingOptions o = options(4, 32);
  o.prompt = "full";
  StreamingPolicy policy(o, toy.config());
  FullPolicy full({}, toy.config());
  SequenceKv kv = toy.new_sequence(), whole = toy.new_sequence();
  for (const size_t chunk : {90, 60}) {
    const auto got = toy.step(kv, policy, chunk, Phase::kPrefill);
    EXPECT_EQ(got, toy.step(whole, full, chunk, Phase::kPrefill));
  }
  for (size_t token = 150; token < 160; ++token) {
    const auto out = toy.step(kv, policy, 1, Phase::kDecode);
    expect_matches(toy, &out[toy.width()], 1, token, o);
  }
  EXPECT_EQ(toy.executor().cost(0).keys_read, 2u * 2 * (4 + 32));
  EXPECT_TRUE(policy.can_resume(kv, 100));
}

TEST(StreamingPolicy, LeavesWindowLayersAlone) {
  ToyShape shape;
  shape.window = 100;
  Toy toy(shape, 200);
  StreamingPolicy policy(options(4, 16), toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 199, Phase::kPrefill);
  const auto row = toy.step(kv, policy, 1, Phase::kDecode);
  const auto want = toy.expected(
      0, 199, 0, [](size_t key) { return key + 100 > 199; }, [](size_t) { return 199; });
  EXPECT_NEAR(row[0], want[0], testing::kFloatTolerance);
}

TEST(StreamingPolicy, ResumesOnlyWhereItsKeysAreStillThere) {
  Toy toy({}, 300);
  StreamingPolicy policy(options(4, 64), toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 300, Phase::kPrefill);
  EXPECT_TRUE(policy.can_resume(kv, 300));
  EXPECT_TRUE(policy.can_resume(kv, 4));
  EXPECT_FALSE(policy.can_resume(kv, 200));
  FullPolicy full({}, toy.config());
  EXPECT_FALSE(full.can_resume(kv, 300));
}

}  // namespace
}  // namespace reprise
