// The example of docs/policies.md, run as a registered policy would be.
#include <gtest/gtest.h>

#include "../examples/strided_policy.h"
#include "attention/registry.h"
#include "attention/toy.h"

namespace reprise {
namespace {

using kernels::Phase;
using testing::Toy;

TEST(ExamplePolicy, ReadsEveryNthPageAndTheLast) {
  const PolicyEntry entries[] = {policy_entry<StridedPolicy, StridedOptions>(
      "strided", "every n-th page and the last", "an example")};
  Toy toy({1, 4, 2, 32}, 200);
  auto policy = create_policy(entries, "strided:stride=3", toy.config());
  ASSERT_TRUE(policy);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, **policy, 170, Phase::kPrefill);
  const auto out = toy.step(kv, **policy, 1, Phase::kDecode);
  const auto is_read = [](size_t key) { return key / 16 % 3 == 0 || key / 16 == 10; };
  for (size_t head = 0; head < 4; ++head) {
    const auto want = toy.expected(0, 170, head, is_read, [](size_t) { return 170; });
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(out[head * want.size() + i], want[i], testing::kFloatTolerance);
    }
  }
  EXPECT_EQ(toy.executor().cost(0).keys_read, 2u * (4 * 16 + 11));
  EXPECT_FALSE(create_policy(entries, "strided:stride=0", toy.config()));
}

}  // namespace
}  // namespace reprise
