// Damaged copies of good files: every prefix, and random changes of bytes.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "formats/bad_files.h"
#include "formats/gguf.h"
#include "formats/gguf_builder.h"
#include "formats/safetensors.h"
#include "formats/safetensors_builder.h"
#include "formats/sentencepiece_builder.h"
#include "formats/tokenizer_data.h"
#include "formats/tokenizer_json_text.h"

namespace reprise::test {
namespace {

// Parses and touches all that the parser claims to be there, so that a sanitizer sees wrong spans.
Status read_gguf(std::string_view bytes) {
  const auto file = GgufFile::parse(as_bytes(bytes), "damaged");
  if (!file) return status_of(file);
  unsigned sum = 0;
  for (const TensorView& view : file->tensors()) {
    for (const std::byte byte : view.bytes) sum += std::to_integer<unsigned>(byte);
  }
  const auto tokenizer = read_gguf_tokenizer(*file);
  return sum > (1u << 30) ? status_of(tokenizer) : Status();
}
Status read_safetensors(std::string_view bytes) {
  return status_of(parse_safetensors(as_bytes(bytes), "damaged"));
}
Status read_tokenizer_json(std::string_view bytes) {
  return status_of(parse_tokenizer_json(bytes, "damaged"));
}
Status read_sentencepiece(std::string_view bytes) {
  return status_of(parse_sentencepiece(bytes, "damaged"));
}

struct Format {
  const char* name;
  std::function<std::string()> good;
  Status (*read)(std::string_view bytes);
  bool prefixes_fail;  // protobuf allows a message to end after any field
};

class Damaged : public testing::TestWithParam<Format> {};

void expect_sound(const Status& status) {
  if (status) return;
  EXPECT_TRUE(status.error().message.starts_with("damaged: ")) << status.error().message;
  EXPECT_EQ(status.error().message.find('\n'), std::string::npos) << status.error().message;
}

TEST_P(Damaged, EveryPrefixFailsCleanly) {
  const std::string good = GetParam().good();
  ASSERT_TRUE(GetParam().read(good));
  for (size_t length = 0; length < good.size(); ++length) {
    const std::string cut(good, 0, length);  // its own allocation, so that overreads are seen
    const Status status = GetParam().read(cut);
    EXPECT_TRUE(!status || !GetParam().prefixes_fail) << "prefix of " << length << " bytes";
    expect_sound(status);
  }
}

TEST_P(Damaged, EveryFlippedBitIsSurvived) {
  const std::string good = GetParam().good();
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    expect_sound(GetParam().read(bytes));
  }
}

// Several bytes replaced at once; extreme values are likelier than chance would have them.
TEST_P(Damaged, RandomBytesAreSurvived) {
  constexpr int kRounds = 20000;
  constexpr unsigned char kExtremes[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
  const std::string good = GetParam().good();
  std::mt19937 random(20250101);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = good;
    for (size_t change = 0; change <= below(8); ++change) {
      const auto value = below(2) == 0 ? kExtremes[below(std::size(kExtremes))] : below(256);
      bytes[below(bytes.size())] = static_cast<char>(value);
    }
    expect_sound(GetParam().read(bytes));
    if (HasFailure()) FAIL() << "in round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, Damaged,
    testing::Values(Format{"Gguf", [] { return small_gguf().build(); }, read_gguf, true},
                    Format{"Safetensors", small_safetensors, read_safetensors, true},
                    Format{"TokenizerJson", small_tokenizer_json, read_tokenizer_json, true},
                    Format{"SentencePiece", [] { return small_sentencepiece().bytes(); },
                           read_sentencepiece, false}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace reprise::test
