#include "methods/policy_memory.h"

#include <gmock/gmock.h>

#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Toy;

constexpr testing::ToyShape kShape = {6, 6, 2, 32, KvType::kBF16};

uint64_t state_of(std::string_view spec, size_t tokens) {
  Toy toy(kShape, tokens);
  toy.prompt_end = static_cast<int32_t>(tokens) - 4;
  const auto policy = testing::make_policy(toy, spec);
  SequenceKv kv = toy.new_sequence();
  for (size_t left = tokens - 4; left > 0; left -= std::min<size_t>(left, 512)) {
    toy.step(kv, *policy, std::min<size_t>(left, 512), Phase::kPrefill);
  }
  testing::decode(toy, *policy, kv, 4);
  return policy->state_bytes();
}

Result<PolicyMemory> measure(std::string_view spec) {
  ThreadPool pool(2);
  return PolicyMemory::measure(spec, testing::toy_config(kShape), pool);
}

TEST(PolicyMemory, MeasuringIsStopped) {
  ThreadPool pool(2);
  uint64_t calls = 0, total = 0;
  const ProgressFn stop = [&](const Progress& progress) {
    total = progress.total;
    return ++calls < 3;
  };
  const auto memory =
      PolicyMemory::measure("csattention:budget=256", testing::toy_config(kShape), pool, stop);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(calls, 3u);
  EXPECT_GT(total, 14'000u);
}

TEST(PolicyMemory, IsAboutWhatPoliciesKeep) {
  for (const std::string_view spec :
       {"quest:budget=256", "csattention:budget=256", "csattention:mode=table,budget=256",
        "pqcache:budget=256", "infllm:local=256", "mac:guard=false", "h2o:budget=256",
        "dense:first=2+csattention:budget=256", "mac:guard=false+quest:budget=256",
        "attention_predictor:budget=256"}) {
    const auto memory = measure(spec);
    ASSERT_TRUE(memory) << memory.error().message;
    const double most = spec.starts_with("infllm") ? 0.5 : 0.15;  // its lists grow by doubling
    for (const size_t tokens : {3000u, 6000u}) {
      const auto own = static_cast<double>(state_of(spec, tokens));
      EXPECT_GT(own, 0.0) << spec;
      EXPECT_NEAR(static_cast<double>(memory->bytes(tokens)) / own, 1.0, most) << spec << tokens;
    }
  }
}

TEST(PolicyMemory, GrowsWithTheContextAlone) {
  const auto lists = measure("quest:budget=256"), rings = measure("mac:guard=false"),
             none = measure("streaming:window=256");
  ASSERT_TRUE(lists && rings && none);
  EXPECT_NEAR(static_cast<double>(lists->bytes(1 << 20)),
              16.0 * static_cast<double>(lists->bytes(1 << 16)), 1e5);
  EXPECT_EQ(rings->bytes(1 << 20), rings->bytes(1 << 13));
  EXPECT_EQ(none->bytes(1 << 20), 0u);
}

TEST(PolicyMemory, CountsRingsWhereThereIsRoomForOne) {
  const std::string options = "mac:window=64,guard=false,ring_memory=";
  const auto rings = measure(options + "0");
  ASSERT_TRUE(rings);
  const uint64_t ring = rings->bytes(1 << 13);
  for (const bool fits : {false, true}) {  // a part's ring fits either way
    const auto memory = measure(options + std::to_string(fits ? ring * 21 / 20 : ring * 9 / 10));
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_EQ(memory->bytes(1 << 13), fits ? ring : 0u);
  }
}

TEST(PolicyMemory, SaysWhatItCannotMeasure) {
  const auto typo = measure("qest");
  ASSERT_FALSE(typo);
  EXPECT_EQ(typo.error().code, ErrorCode::kUnknownPolicy);
  const auto one_head = measure("reattention:heads=5:4");
  ASSERT_FALSE(one_head);
  EXPECT_EQ(one_head.error().code, ErrorCode::kUnsupported);
  const auto late = measure("dense:first=5+csattention:budget=256");
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(late.error().message, ::testing::HasSubstr("plan for csattention:budget=256"));
  EXPECT_THAT(one_head.error().message, ::testing::HasSubstr("leave out those for single layers"));
}

}  // namespace
}  // namespace reprise
