// A parser may not allocate more than a small multiple of the file it reads, whatever the file
// says.
#include <gtest/gtest.h>

#include "formats/allocated.h"
#include "formats/gguf.h"
#include "formats/gguf_builder.h"
#include "formats/safetensors.h"
#include "formats/safetensors_builder.h"
#include "formats/sentencepiece_builder.h"
#include "formats/tokenizer_data.h"

namespace reprise::test {
namespace {

constexpr size_t kItems = 20000;
// Per byte of the file and over the whole parse, freed memory counted too: a map node and a vector
// that doubles around the smallest item that a format allows, plus a fixed allowance.
constexpr size_t kMultiple = 24, kAllowance = 1 << 20;

template <class Parse>
void expect_bounded(const std::string& bytes, Parse parse) {
  const size_t before = allocated_bytes();
  const bool parsed = parse(bytes);
  const size_t used = allocated_bytes() - before;
  EXPECT_TRUE(parsed);
  EXPECT_LE(used, bytes.size() * kMultiple + kAllowance) << "for " << bytes.size() << " bytes";
}

bool read_gguf(const std::string& bytes) {
  return GgufFile::parse(as_bytes(bytes), "file").has_value();
}

TEST(Allocation, OfGgufIsBounded) {
  GgufBuilder pairs, tensors, arrays;
  for (size_t i = 0; i < kItems; ++i) {
    pairs.add(std::to_string(i), uint8_t{1});
    tensors.tensor(std::to_string(i), {1}, {0.0f});
    arrays.add_strings(std::to_string(i), {});
  }
  arrays.add_array("numbers", std::vector<uint8_t>(kItems * 10));
  arrays.add_strings("texts", std::vector<std::string>(kItems));
  expect_bounded(pairs.build(), read_gguf);
  expect_bounded(tensors.build(), read_gguf);
  expect_bounded(arrays.build(), read_gguf);
}

TEST(Allocation, OfSafetensorsIsBounded) {
  std::string entries;
  for (size_t i = 0; i < kItems; ++i) {
    if (i > 0) entries += ',';
    entries += safetensors_entry(std::to_string(i), "F32", "[1]", i * 4, i * 4 + 4);
  }
  expect_bounded(
      safetensors(fmt::format("{{{}}}", entries), std::string(kItems * 4, '\0')),
      [](const auto& bytes) { return parse_safetensors(as_bytes(bytes), "file").has_value(); });
}

TEST(Allocation, OfTokenizersIsBounded) {
  std::string vocab = "{\"model\":{\"merges\":[],\"vocab\":{";
  ProtobufWriter pieces;
  for (size_t i = 0; i < kItems; ++i) {
    vocab += fmt::format("{}\"{}\":{}", i > 0 ? "," : "", i, i);
    pieces.text(1, ProtobufWriter().text(1, "a").bytes());
  }
  expect_bounded(vocab + "}}}", [](const std::string& text) {
    return parse_tokenizer_json(text, "file").has_value();
  });
  expect_bounded(pieces.bytes(), [](const std::string& bytes) {
    return parse_sentencepiece(bytes, "file").has_value();
  });
}

}  // namespace
}  // namespace reprise::test
