#include "base/nearest.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace reprise {
namespace {

constexpr std::array<std::string_view, 5> kNames{"streaming", "full", "--temp", "--top-k", "chat"};

TEST(Nearest, FindsTypingMistakes) {
  EXPECT_EQ(nearest("streming", kNames), "streaming");   // missing letter
  EXPECT_EQ(nearest("straeming", kNames), "streaming");  // swapped letters
  EXPECT_EQ(nearest("fulll", kNames), "full");           // doubled letter
  EXPECT_EQ(nearest("--tmep", kNames), "--temp");
  EXPECT_EQ(nearest("CHAT", kNames), "chat");
  EXPECT_EQ(nearest("stream", kNames), "streaming");      // beginning of a name
  EXPECT_EQ(nearest("--temperature", kNames), "--temp");  // of which a name is the beginning
}

TEST(Nearest, LongestNameThatBeginsTheWordIsMeantWhereNoneIsNear) {
  constexpr std::array<std::string_view, 4> kStores{"--store", "--store-size", "--s",
                                                    "--store-codec"};
  EXPECT_EQ(nearest("--store-codec-and-level", kStores), "--store-codec");
  EXPECT_EQ(nearest("--store-in-this-folder", kStores), "--store");
  EXPECT_EQ(nearest("--store-ize", kStores), "--store-size") << "a mistake is likelier";
  EXPECT_EQ(nearest("--STORE", kStores), "--store");
}

TEST(Nearest, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(nearest("banana", kNames), "");
  EXPECT_EQ(nearest("", kNames), "");
  EXPECT_EQ(nearest("full", {}), "");
  EXPECT_EQ(nearest(std::string(100000, 'x'), kNames), "");
}

TEST(Nearest, EditsAreCountedWhateverTheCase) {
  EXPECT_EQ(edits("kv-type", "KV-TYPE"), 0u);
  EXPECT_EQ(edits("kv-tpye", "kv-type"), 1u);
  EXPECT_EQ(edits("version", "session"), 2u);
  EXPECT_EQ(edits("", "abc"), 3u);
}

TEST(Nearest, SuggestionIsPartOfASentence) {
  EXPECT_EQ(suggestion("ful", kNames), " (did you mean full?)");
  EXPECT_EQ(suggestion("zzzzzz", kNames), "");
}

}  // namespace
}  // namespace reprise
