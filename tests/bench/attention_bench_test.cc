#include "bench/attention_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/bench.h"
#include "bench/peer_testing.h"

namespace reprise {
namespace {

using testing::HasSubstr;

/// Kernels that take a nanosecond per key of every sequence.
class LinearKernels : public AttentionKernels {
 public:
  Status prepare(const AttentionCase& wanted) override {
    case_ = wanted;
    return {};
  }
  Result<double> microseconds() override { return case_.context * case_.batch / 1000.0; }
  double kv_bytes_per_token() const override { return 512; }

 private:
  AttentionCase case_;
};

/// Two kernels, the second of which only decodes, in 4 us.
constexpr const char* kKernels = R"sh(
  *'"op":"start"'*) echo '{"version":"fake 2","settings":["slow","decoder"]}' ;;
  *'"op":"prefill"'*'"setting":1'*) echo '{"us":null}' ;;
  *'"setting":1'*) echo '{"us":4.0}' ;;
  *) echo '{"us":16.0}' ;;
)sh";

AttentionCases plan_of(std::vector<AttentionCase> cases, uint64_t& ticks) {
  AttentionCases plan;
  plan.cases = std::move(cases);
  plan.shape = {8, 2, 64, "bf16"};
  plan.machine = {4096, 0.001, 0.001, "device"};
  plan.tick = [&ticks]() -> Status {
    ++ticks;
    return {};
  };
  return plan;
}

TEST(AttentionBench, ComparesWithThePeersBestKernel) {
  const test::FakePeer fake(kKernels);
  uint64_t ticks = 0;
  const auto plan = plan_of({{true, 1000, 2}, {false, 1000, 1}}, ticks);
  LinearKernels kernels;
  auto peer = AttentionPeer::start(plan.shape);
  ASSERT_TRUE(peer) << peer.error().message;
  const auto report = measure_attention(plan, kernels, &*peer);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(ticks, 2u * 3 * 3);
  EXPECT_EQ(report->peer, "fake 2");
  ASSERT_EQ(report->rows.size(), 5u);  // three that decode, two that read prompts
  const AttentionRow &decode = report->rows[0], &decoder = report->rows[2];
  EXPECT_EQ(decode.kernel, "reprise");
  EXPECT_DOUBLE_EQ(decode.median_us, 2);
  EXPECT_DOUBLE_EQ(decode.gb_s, 512.0 * 2000 / 2 * 1e-3);
  EXPECT_DOUBLE_EQ(decode.roof_pct, 12.5);
  EXPECT_DOUBLE_EQ(decode.vs_best, 4.0 / 2);
  EXPECT_EQ(decoder.kernel, "decoder");
  EXPECT_DOUBLE_EQ(decoder.gb_s, 4.0 * 2 * 64 * 2000 / 4 * 1e-3);
  EXPECT_EQ(decoder.vs_best, 0);
  const AttentionRow& prefill = report->rows[3];
  EXPECT_EQ(prefill.phase, "prefill");
  EXPECT_DOUBLE_EQ(prefill.tflop_s, 4.0 * 8 * 64 * 1000 * 1001 / 2 * 1e-6);
  EXPECT_DOUBLE_EQ(prefill.vs_best, 16);
  EXPECT_EQ(report->rows[4].kernel, "slow");
}

TEST(AttentionBench, TablesHaveEveryRow) {
  uint64_t ticks = 0;
  const auto plan = plan_of({{true, 1000, 2}, {false, 2000, 1}}, ticks);
  LinearKernels kernels;
  const auto report = measure_attention(plan, kernels, nullptr);
  ASSERT_TRUE(report);
  const std::string text = attention_markdown(*report);
  EXPECT_THAT(text, HasSubstr("on device, 8 query heads, 2 KV heads, head_dim 64, bf16 KV;"));
  EXPECT_THAT(text, HasSubstr("| decode | 1000 | 2 | reprise | 2.00 | 512 GB/s | 12 % | - |"));
  EXPECT_THAT(text, HasSubstr("| prefill | 2000 | 1 | reprise | 2.00 |"));
  const auto json = attention_json(*report);
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][0]["median_us"], 2);
  EXPECT_EQ(json["kv_type"], "bf16");
}

TEST(AttentionBench, CancelEndsIt) {
  uint64_t ticks = 0;
  auto plan = plan_of({{true, 1000, 1}}, ticks);
  plan.tick = []() -> Status { return fail(ErrorCode::kCancelled, "enough"); };
  LinearKernels kernels;
  const auto report = measure_attention(plan, kernels, nullptr);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
}

TEST(AttentionBench, NeedsAGpu) {
  BenchPlan plan;
  plan.engine = test::tiny_options();
  plan.bench.measure = "attention";
  auto report = run_bench(plan);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(report.error().message, HasSubstr("--device cuda"));
  plan.bench.measure = "all";
  plan.peer = "torch";
  report = run_bench(plan);
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().message, HasSubstr("--peer torch"));
}

}  // namespace
}  // namespace reprise
