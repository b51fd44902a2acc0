#include "reprise/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

namespace reprise {
namespace {

using testing::HasSubstr;

constexpr OptionSpec kTokens{"ctx", "", "tokens", 16, 1 << 20};
constexpr OptionSpec kBytes{"kv-memory", "", "bytes", 0, 0x1p50};
constexpr OptionSpec kCount{"top-k", ""};
constexpr OptionSpec kShare{"top-p", "", "", 0, 1};
constexpr OptionSpec kWord{"kv-type", "", "", 0, 0, "bf16|f16|f32|q8_0"};

template <class T>
std::string error_of(const OptionSpec& spec, std::string_view text) {
  T field{};
  const Status status = parse_option(spec, text, field);
  EXPECT_FALSE(status) << text;
  EXPECT_EQ(field, T{}) << "a refused text must leave the field alone";
  if (status) return "";
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  return status.error().message;
}

template <class T>
T value_of(const OptionSpec& spec, std::string_view text) {
  T field{};
  const Status status = parse_option(spec, text, field);
  EXPECT_TRUE(status) << (status ? "" : status.error().message);
  return field;
}

TEST(ParseOption, WholeNumbers) {
  EXPECT_EQ(value_of<uint32_t>(kTokens, "4096"), 4096u);
  EXPECT_EQ(value_of<uint32_t>(kTokens, "16"), 16u);
  EXPECT_EQ(value_of<uint32_t>(kTokens, "1048576"), 1u << 20);
  EXPECT_EQ(value_of<uint32_t>(kTokens, "32K"), 32768u);
  EXPECT_EQ(value_of<uint32_t>(kTokens, "1M"), 1u << 20);
  EXPECT_EQ(value_of<uint64_t>({"seed", "", "", 0, 0x1p63}, "9007199254740993"), 9007199254740993u);
}

TEST(ParseOption, WholeNumbersRefused) {
  for (const char* text : {"", " 32", "32 ", "-1", "+5", "0x20", "1e3", "15", "1048577", "2M",
                           "99999999999999999999", "4096.0", "many", "K", "nanK", "infK", "-1K"}) {
    EXPECT_THAT(error_of<uint32_t>(kTokens, text), HasSubstr("ctx: \"" + std::string(text) + "\""))
        << text;
  }
  EXPECT_THAT(error_of<uint32_t>(kTokens, "5"), HasSubstr("from 16 to 1048576"));
  EXPECT_THAT(error_of<uint32_t>(kCount, "4K"), HasSubstr("whole number"));
  EXPECT_THAT(error_of<uint32_t>(kCount, "4294967296"), HasSubstr("4294967295"));
}

TEST(ParseOption, Bytes) {
  EXPECT_EQ(value_of<uint64_t>(kBytes, "0"), 0u);
  EXPECT_EQ(value_of<uint64_t>(kBytes, "512M"), uint64_t{512} << 20);
  EXPECT_EQ(value_of<uint64_t>(kBytes, "2G"), uint64_t{2} << 30);
  EXPECT_EQ(value_of<uint64_t>(kBytes, "2GiB"), uint64_t{2} << 30);
  EXPECT_EQ(value_of<uint64_t>(kBytes, "2GB"), uint64_t{2} << 30);
  EXPECT_EQ(value_of<uint64_t>(kBytes, "1.5k"), 1536u);
  error_of<uint64_t>(kBytes, "1.5");
  error_of<uint64_t>(kBytes, "2X");
  error_of<uint64_t>(kBytes, "B");
  error_of<uint64_t>(kBytes, "9999T");
}

TEST(ParseOption, Numbers) {
  EXPECT_EQ(value_of<float>(kShare, "0.25"), 0.25f);
  EXPECT_EQ(value_of<float>(kShare, "1"), 1.0f);
  for (const char* text : {"", "1.01", "-0.1", "nan", "inf", "0,5", "0.5x"})
    EXPECT_THAT(error_of<float>(kShare, text), HasSubstr("from 0 to 1"));
}

TEST(ParseOption, TruthValues) {
  const OptionSpec spec{"prefix-cache", ""};
  for (const char* text : {"true", "1", "on", "yes"}) EXPECT_TRUE(value_of<bool>(spec, text));
  for (const char* text : {"false", "0", "off", "no"}) EXPECT_FALSE(value_of<bool>(spec, text));
  EXPECT_THAT(error_of<bool>(spec, "maybe"), HasSubstr("true or false"));
}

TEST(ParseOption, Choices) {
  EXPECT_EQ(value_of<std::string>(kWord, "q8_0"), "q8_0");
  EXPECT_EQ(value_of<std::string>({"model", ""}, "any text"), "any text");
  const std::string message = error_of<std::string>(kWord, "q8");
  EXPECT_THAT(message, HasSubstr("bf16, f16, f32, q8_0"));
  EXPECT_THAT(error_of<std::string>(kWord, "fb16"), HasSubstr("did you mean bf16?"));
}

TEST(Options, DefaultsAreValidAndNamesAreUnique) {
  EXPECT_TRUE(validate(EngineOptions{}));
  EXPECT_TRUE(validate(SamplingOptions{}));
  std::set<std::string_view> names;
  const auto visit = [&](const OptionSpec& spec, auto&) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    EXPECT_FALSE(spec.help.empty()) << spec.name;
  };
  EngineOptions engine;
  SamplingOptions sampling;
  visit_options(engine, visit);
  visit_options(sampling, visit);
}

TEST(Options, FormatIsReadBack) {
  EngineOptions options;
  options.kv_memory = (uint64_t{3} << 30) + 1;
  options.kv_type = "q8_0";
  options.prefix_cache = false;
  EngineOptions copy;
  std::vector<std::string> texts;
  visit_options(options,
                [&](const OptionSpec&, auto& field) { texts.push_back(format_option(field)); });
  size_t next = 0;
  visit_options(copy, [&](const OptionSpec& spec, auto& field) {
    EXPECT_TRUE(parse_option(spec, texts[next++], field)) << spec.name;
  });
  EXPECT_EQ(copy.kv_memory, options.kv_memory);
  EXPECT_EQ(copy.kv_type, options.kv_type);
  EXPECT_EQ(copy.prefix_cache, options.prefix_cache);
}

TEST(Options, ValidateFindsBadFields) {
  EngineOptions engine;
  engine.chunk = 1;
  EXPECT_THAT(validate(engine).error().message, HasSubstr("chunk: \"1\""));
  engine = {};
  engine.kv_type = "f8";
  EXPECT_EQ(validate(engine).error().code, ErrorCode::kInvalidArgument);
  SamplingOptions sampling;
  sampling.top_p = std::nanf("");
  EXPECT_THAT(validate(sampling).error().message, HasSubstr("top-p"));
}

}  // namespace
}  // namespace reprise
