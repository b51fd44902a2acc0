#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "formats/printable.h"
#include "text/tokenizer_fixtures.h"
#include "text/utf8.h"

namespace reprise {
namespace {

std::vector<std::string> stream(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens,
                                bool keep_special = false) {
  StreamDecoder decoder(tokenizer, keep_special);
  std::vector<std::string> texts;
  for (const int32_t token : tokens) texts.push_back(decoder.push(token));
  texts.push_back(decoder.finish());
  return texts;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text;
  return all;
}

TEST(StreamDecoder, HoldsBackIncompleteCharacters) {
  const auto tokenizer = make_tokenizer(tiny_byte_bpe({}));
  EXPECT_THAT(stream(*tokenizer, {0xF0, 0x9F, 0x98, 0x80, '!'}),
              testing::ElementsAre("", "", "", "😀", "!", ""));
}

TEST(StreamDecoder, ReplacesWhatCannotBecomeACharacter) {
  const auto tokenizer = make_tokenizer(tiny_byte_bpe({}));
  EXPECT_THAT(stream(*tokenizer, {0xE2, 'a', 0xFF, 0xC3}),
              testing::ElementsAre("", "\uFFFDa", "\uFFFD", "", "\uFFFD"));
}

TEST(StreamDecoder, SkipsSpecialTokensUnlessKept) {
  TokenizerData data = tiny_byte_bpe({});
  const int32_t end = add_token(data, "<e>", true);
  const auto tokenizer = make_tokenizer(data);
  EXPECT_EQ(joined(stream(*tokenizer, {'a', end, 'b'})), "ab");
  EXPECT_EQ(joined(stream(*tokenizer, {'a', end, 'b'}, true)), "a<e>b");
}

TEST(StreamDecoder, DropsTheSpaceBeforeATextOnce) {
  const auto tokenizer = fixture_tokenizer("llama2.json");
  const auto ids = tokenizer->encode("it was it");
  EXPECT_EQ(joined(stream(*tokenizer, ids)), "it was it");
  EXPECT_EQ(tokenizer->decode(ids), "it was it");
}

RC_GTEST_PROP(StreamDecoder, PiecesAreValidAndJoinToWhatDecodeGives, ()) {
  static const auto tokenizers = [] {
    std::vector<std::unique_ptr<Tokenizer>> all;
    for (const char* name : {"gpt2.json", "llama2.json", "unigram.json", "spm_bpe.model"}) {
      all.push_back(fixture_tokenizer(name));
    }
    return all;
  }();
  const auto keep = *rc::gen::arbitrary<bool>();
  for (const auto& tokenizer : tokenizers) {
    const auto limit = static_cast<int32_t>(tokenizer->vocab_size()) + 1;
    const auto ids = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(-1, limit));
    const auto texts = stream(*tokenizer, ids, keep);
    for (const std::string& text : texts) RC_ASSERT(is_utf8(text));
    RC_ASSERT(joined(texts) == replace_invalid_utf8(tokenizer->decode(ids, keep)));
  }
}

}  // namespace
}  // namespace reprise
