#include "text/byte_tokenizer.h"

#include <gtest/gtest.h>

#include <string>

#include "text/tokenizer.h"

namespace reprise {
namespace {

TEST(ByteTokenizer, IdsAreBytes) {
  const auto tokenizer = Tokenizer::create(byte_tokenizer(300));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->vocab_size(), 300u);
  std::string text = "Hello, w\xc3\xb6rld <|256|>\n";
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  const auto ids = (*tokenizer)->encode(text, {.parse_special = true});
  ASSERT_EQ(ids.size(), text.size());
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], static_cast<uint8_t>(text[i])) << i;
  EXPECT_EQ((*tokenizer)->decode(ids), text);
}

TEST(ByteTokenizer, OtherTokensEndNothing) {
  const auto tokenizer = Tokenizer::create(byte_tokenizer(300));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  for (int32_t token = 0; token < 300; ++token) EXPECT_FALSE((*tokenizer)->is_end(token)) << token;
}

}  // namespace
}  // namespace reprise
