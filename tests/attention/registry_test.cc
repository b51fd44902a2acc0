#include "attention/registry.h"

#include <gtest/gtest.h>

#include "attention/scripted.h"

namespace reprise {
namespace {

struct NoOptions {};
template <class Visit>
void visit_options(NoOptions&, Visit) {}

struct Plain : testing::ScriptedPolicy {
  Plain(const NoOptions&, const ModelConfig&) {}
};

class Wrapped : public PolicyDecorator {
 public:
  Wrapped(const NoOptions&, const ModelConfig&, std::unique_ptr<Policy> inner)
      : PolicyDecorator(std::move(inner)) {}
  std::unique_ptr<Policy> fork() const override { return std::make_unique<Wrapped>(*this); }
};

// Each is a call inside another one: with enough of them the stack would end.
TEST(PolicySpec, DecoratorsAreLimited) {
  const PolicyEntry entries[] = {policy_entry<Plain, NoOptions>("full", "", ""),
                                 policy_entry<Wrapped, NoOptions>("wrapped", "", "")};
  const ModelConfig config = testing::toy_config({});
  std::string spec = "full";
  for (int i = 0; i < 32; ++i) spec = "wrapped+" + spec;
  const auto policy = create_policy(entries, spec, config);
  ASSERT_TRUE(policy) << policy.error().message;
  EXPECT_EQ((*policy)->fork()->undecorated().spec(), "full");
  for (const size_t more : {1, 100'000}) {
    std::string longer;
    for (size_t i = 0; i < more; ++i) longer += "wrapped+";
    const auto refused = create_policy(entries, longer + spec, config);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_LT(refused.error().message.size(), 100u);
  }
}

}  // namespace
}  // namespace reprise
