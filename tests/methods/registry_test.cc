#include "attention/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/toy.h"
#include "methods/registry.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

Error error_of(std::string_view spec) {
  auto policy = create_policy(policy_entries(), spec, testing::toy_config({}));
  EXPECT_FALSE(policy) << spec;
  return policy ? Error{} : policy.error();
}

TEST(PolicySpec, NamesAndOptionsAreRead) {
  for (const auto* spec : {"full", "full:keys=position-free", "streaming",
                           "streaming:sink=0,window=16", "streaming:positions=text"}) {
    EXPECT_TRUE(create_policy(policy_entries(), spec, testing::toy_config({}))) << spec;
  }
}

TEST(PolicySpec, AnUnknownNameSuggestsTheNearest) {
  const Error error = error_of("steaming:window=8");
  EXPECT_EQ(error.code, ErrorCode::kUnknownPolicy);
  EXPECT_THAT(error.message, HasSubstr("did you mean streaming?"));
}

TEST(PolicySpec, AnUnknownOptionSuggestsTheNearest) {
  const Error error = error_of("streaming:windw=8");
  EXPECT_EQ(error.code, ErrorCode::kUnknownOption);
  EXPECT_THAT(error.message, HasSubstr("did you mean window?"));
}

TEST(PolicySpec, BadValuesAndShapesAreRefused) {
  for (const auto* spec : {"streaming:window=0", "streaming:window=-3", "streaming:window=x",
                           "streaming:positions=both", "streaming:window", "streaming:=4"}) {
    EXPECT_EQ(error_of(spec).code, ErrorCode::kInvalidArgument) << spec;
  }
  EXPECT_EQ(error_of("full+streaming").code, ErrorCode::kInvalidArgument);
}

TEST(PolicyList, DescribesEveryOption) {
  for (const PolicyEntry& entry : policy_entries()) {
    EXPECT_FALSE(entry.summary.empty()) << entry.name;
    EXPECT_FALSE(entry.source.empty()) << entry.name;
    for (const OptionInfo& option : entry.options) {
      EXPECT_FALSE(option.help.empty()) << entry.name << " " << option.name;
      EXPECT_FALSE(option.default_value.empty()) << entry.name << " " << option.name;
    }
  }
}

}  // namespace
}  // namespace reprise
