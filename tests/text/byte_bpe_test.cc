#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <thread>

#include "text/tokenizer_fixtures.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Tokenizer> english() {
  return make_tokenizer(
      tiny_byte_bpe({{"t", "h"}, {"th", "e"}, {" ", "the"}, {"a", "a"}, {"aa", "aa"}}));
}

TEST(ByteBpe, MergesTheLowestRankFirstAndTheLeftmostOfEquals) {
  const auto tokenizer = english();
  EXPECT_THAT(tokenizer->encode("the"), ElementsAre(257));
  EXPECT_THAT(tokenizer->encode(" the"), ElementsAre(258));
  EXPECT_THAT(tokenizer->encode("aaa"), ElementsAre(259, 'a'));
  EXPECT_THAT(tokenizer->encode("aaaaa"), ElementsAre(260, 'a'));
  EXPECT_THAT(tokenizer->encode(""), ElementsAre());
}

TEST(ByteBpe, NeverMergesAcrossPieces) {
  const auto tokenizer = english();
  EXPECT_THAT(tokenizer->encode("t he"), ElementsAre('t', ' ', 'h', 'e'));
  EXPECT_THAT(tokenizer->encode("aa1aa"), ElementsAre(259, '1', 259));
}

TEST(ByteBpe, AWordMetAgainHasTheSameIds) {
  const auto tokenizer = english();
  const auto once = tokenizer->encode(" thesis");
  std::string text;
  std::vector<int32_t> expected;
  for (int i = 0; i < 100; ++i) {
    text += " thesis";
    expected.insert(expected.end(), once.begin(), once.end());
  }
  EXPECT_EQ(tokenizer->encode(text), expected);
}

TEST(ByteBpe, IgnoreMergesTakesWholePiecesFirst) {
  TokenizerData data = tiny_byte_bpe({});
  data.tokens.push_back(to_byte_level(" house"));
  data.kinds.push_back(TokenKind::kNormal);
  EXPECT_EQ(make_tokenizer(data)->encode(" house").size(), 6u);
  data.ignore_merges = true;
  EXPECT_THAT(make_tokenizer(data)->encode(" house houses"),
              ElementsAre(256, ' ', 'h', 'o', 'u', 's', 'e', 's'));
}

TEST(ByteBpe, AddsBosAndEosOnlyWhenAsked) {
  TokenizerData data = tiny_byte_bpe({});
  data.bos = add_token(data, "<s>", true);
  data.eos = add_token(data, "</s>", true);
  data.add_bos = data.add_eos = true;
  const auto tokenizer = make_tokenizer(data);
  EXPECT_THAT(tokenizer->encode("x"), ElementsAre(256, 'x', 257));
  EXPECT_THAT(tokenizer->encode(""), ElementsAre(256, 257));
  EXPECT_THAT(tokenizer->encode("x", {.add_special = false}), ElementsAre('x'));
}

TEST(ByteBpe, RefusesAnUnknownPreTokenizerByName) {
  const auto result = Tokenizer::create(tiny_byte_bpe({}, "no-such-family"));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kUnsupportedTokenizer);
  EXPECT_THAT(result.error().message, HasSubstr("no-such-family"));
}

TEST(ByteBpe, KnowsItsTokens) {
  TokenizerData data = tiny_byte_bpe({{"t", "h"}});
  data.eos = add_token(data, "<end>", true);
  data.end_of_turn = {add_token(data, "<turn>", true)};
  const auto tokenizer = make_tokenizer(data);
  EXPECT_EQ(tokenizer->vocab_size(), 259u);
  EXPECT_EQ(tokenizer->find("<turn>"), 258);
  EXPECT_EQ(tokenizer->find("<nothing>"), std::nullopt);
  EXPECT_TRUE(tokenizer->is_end(257));
  EXPECT_TRUE(tokenizer->is_end(258));
  EXPECT_FALSE(tokenizer->is_end('x'));
  EXPECT_TRUE(tokenizer->is_special(257));
  EXPECT_FALSE(tokenizer->is_special(256));
  EXPECT_EQ(tokenizer->token_bytes(256), "th");
  for (const int32_t outside : {-1, 259, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->token_bytes(outside), "");
    EXPECT_FALSE(tokenizer->is_special(outside));
    EXPECT_FALSE(tokenizer->is_end(outside));
  }
}

RC_GTEST_PROP(ByteBpe, AnyBytesComeBack, (const std::string& text)) {
  static const auto tokenizer = english();
  RC_ASSERT(tokenizer->decode(tokenizer->encode(text)) == text);
}

RC_GTEST_PROP(ByteBpe, AnyTextComesBackInEveryFamily, ()) {
  static const auto tokenizers = [] {
    std::vector<std::unique_ptr<Tokenizer>> all;
    for (const char* pre :
         {"gpt-2", "llama-bpe", "qwen2", "smollm", "deepseek-coder", "deepseek-llm", "deepseek-v3",
          "falcon", "tekken", "gpt-4o", "bloom", "viking", "bailingmoe", "seed-coder", ""}) {
      all.push_back(make_tokenizer(tiny_byte_bpe({{"t", "h"}, {" ", " "}, {"\n", "\n"}}, pre)));
    }
    return all;
  }();
  const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
      "the", " ", "\n", "\r\n", "\t", "é", "e\u0301", "12", "½", "٣", "!?", "'re", "'RE", "A", "语",
      "한", "😀", "\u00a0", "\u2028", "\u180e", "\xff", "\xe2\x96", "\xc3", std::string(1, '\0')));
  std::string text;
  for (const std::string& part : parts) text += part;
  for (const auto& tokenizer : tokenizers) {
    RC_ASSERT(tokenizer->decode(tokenizer->encode(text)) == text);
  }
}

TEST(ByteBpe, BrokenBytesWithoutATokenBecomeReplacementCharacters) {
  TokenizerData data = tiny_byte_bpe({});
  data.kinds[0xFF] = TokenKind::kUnused;
  data.unknown = add_token(data, "<|endoftext|>", true);
  const auto tokenizer = make_tokenizer(data);
  EXPECT_THAT(tokenizer->encode("a\xff\xfe"), ElementsAre('a', 0xEF, 0xBF, 0xBD, 0xEF, 0xBF, 0xBD));
  EXPECT_THAT(tokenizer->encode("a\xfe"), ElementsAre('a', 0xFE));
}

TEST(ByteBpe, ServesSeveralThreads) {
  const auto tokenizer = english();
  const std::string text = "the aaa thesis of the aaaaa\n the the 12 the";
  const auto expected = tokenizer->encode(text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += tokenizer->encode(text) == expected ? 0 : 1;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST(Fingerprint, ChangesWithWhatDecidesIds) {
  const TokenizerData base = tiny_byte_bpe({{"t", "h"}, {"h", "e"}});
  const auto print = [](const TokenizerData& data) { return make_tokenizer(data)->fingerprint(); };
  EXPECT_EQ(print(base), print(base));
  TokenizerData other = base;
  std::swap(other.merges[0], other.merges[1]);
  EXPECT_NE(print(other), print(base));
  other = base;
  other.gguf_pre = "qwen2";
  EXPECT_NE(print(other), print(base));
  other = base;
  add_token(other, "<x>", true);
  EXPECT_NE(print(other), print(base));
  other = base;
  other.ignore_merges = true;
  EXPECT_NE(print(other), print(base));
  other = base;
  other.chat_template = "irrelevant";
  EXPECT_EQ(print(other), print(base));
}

}  // namespace
}  // namespace reprise
