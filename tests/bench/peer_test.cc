#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "bench/bench.h"
#include "bench/engine_peer.h"
#include "bench/peer_testing.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A peer of two settings, the second twice as fast.
constexpr const char* kHonest = R"sh(
  *'"op":"start"'*) echo '{"version":"fake 1","settings":["slow","fast"]}' ;;
  *'"op":"fill"'*)
    tokens=${line#*[}
    set -- $(echo "${tokens%%]*}" | tr ',' ' ')
    echo "{\"filled\":$#}" ;;
  *'"op":"prefill"'*'"setting":0'*) echo '{"ms":20.0}' ;;
  *'"op":"prefill"'*) echo '{"ms":10.0}' ;;
  *'"setting":0'*) echo '{"ms":[9,4,4,4]}' ;;
  *) echo '{"ms":[9,2,2,2]}' ;;
)sh";

Error start_error(const std::string& cases) {
  const test::FakePeer fake(cases);
  const auto peer = EnginePeer::start({"model.gguf", 2, 64, "bf16"});
  EXPECT_FALSE(peer);
  return peer ? Error{} : peer.error();
}

TEST(EnginePeer, MissingOneIsExplained) {
  setenv("REPRISE_PEER_PYTHON", "/nowhere/python", 1);
  const auto peer = EnginePeer::start({"model.gguf", 2, 64, "bf16"});
  unsetenv("REPRISE_PEER_PYTHON");
  ASSERT_FALSE(peer);
  EXPECT_EQ(peer.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(peer.error().message, HasSubstr("/nowhere/python is missing"));
  EXPECT_THAT(peer.error().message, HasSubstr("make peer"));
  EXPECT_THAT(peer.error().message, HasSubstr("REPRISE_PEER_PYTHON"));
}

TEST(EnginePeer, AnswersInTurn) {
  const test::FakePeer fake(kHonest);
  auto peer = EnginePeer::start({"model.gguf", 2, 64, "bf16"});
  ASSERT_TRUE(peer) << peer.error().message;
  EXPECT_EQ(peer->version(), "fake 1");
  EXPECT_THAT(peer->settings(), ElementsAre("slow", "fast"));
  const std::vector<int32_t> tokens = {5, 6, 7};
  EXPECT_EQ(peer->prefill(0, tokens), 20.0);
  EXPECT_EQ(peer->prefill(1, tokens), 10.0);
  EXPECT_TRUE(peer->fill(0, tokens));
  EXPECT_THAT(*peer->decode(1, 4), ElementsAre(9, 2, 2, 2));
  const auto short_answer = peer->decode(1, 5);
  ASSERT_FALSE(short_answer) << "four times for five steps";
  EXPECT_EQ(short_answer.error().code, ErrorCode::kUnsupported);
}

TEST(EnginePeer, BadAnswersAreErrors) {
  EXPECT_EQ(start_error("*) exit 1 ;;").code, ErrorCode::kUnsupported);
  EXPECT_EQ(start_error("*) echo hello ;;").code, ErrorCode::kBadJson);
  EXPECT_EQ(start_error("*) echo '[]' ;;").code, ErrorCode::kBadJson);
  EXPECT_EQ(start_error("*) echo '{\"version\":\"1\"}' ;;").code, ErrorCode::kBadJson);
  EXPECT_EQ(start_error("*) echo '{\"version\":1,\"settings\":[\"a\"]}' ;;").code,
            ErrorCode::kBadJson);
  EXPECT_EQ(start_error("*) echo '{\"version\":\"1\",\"settings\":[]}' ;;").code,
            ErrorCode::kUnsupported);
  const Error told = start_error("*) echo '{\"error\":\"no such model\"}' ;;");
  EXPECT_EQ(told.code, ErrorCode::kUnsupported);
  EXPECT_THAT(told.message, HasSubstr("no such model"));
}

BenchPlan peer_plan() {
  BenchPlan plan;
  plan.engine = test::tiny_options();
  plan.bench.max_tokens = 4;
  plan.bench.rounds = 2;
  plan.contexts = {32};
  plan.peer = "llama.cpp";
  return plan;
}

TEST(EnginePeer, BenchComparesWithItsFasterSetting) {
  const test::FakePeer fake(kHonest);
  const auto report = run_bench(peer_plan());
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->rows.size(), 4u);  // ours and the peer's, prefill and decode
  for (const size_t first : {0, 2}) {
    const BenchRow &ours = report->rows[first], &peer = report->rows[first + 1];
    const double peer_ms = first == 0 ? 10 : 2;
    EXPECT_EQ(peer.policy, "llama.cpp");
    EXPECT_EQ(peer.note, "fake 1, fast");
    EXPECT_EQ(peer.median_ms, peer_ms);
    EXPECT_DOUBLE_EQ(peer.vs_peer, 1);
    EXPECT_DOUBLE_EQ(ours.vs_peer, peer_ms / ours.median_ms);
    EXPECT_EQ(ours.peer, "llama.cpp");
    EXPECT_EQ(peer.peer, "llama.cpp");
  }
}

TEST(EnginePeer, SeveralSequencesAreNotComparedWithItsOne) {
  const test::FakePeer fake(kHonest);
  BenchPlan plan = peer_plan();
  plan.bench.sequences = 2;
  const auto report = run_bench(plan);
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->rows.size(), 4u);
  const BenchRow &prefill = report->rows[0], &ours = report->rows[2], &peer = report->rows[3];
  EXPECT_GT(prefill.vs_peer, 0) << "of one prompt";
  EXPECT_EQ(ours.batch, 2u);
  EXPECT_EQ(ours.vs_peer, 0);
  EXPECT_EQ(ours.peer, "");
  EXPECT_EQ(peer.batch, 1u);
  EXPECT_DOUBLE_EQ(peer.vs_peer, 1);
}

}  // namespace
}  // namespace reprise
