// Every codec gives back what it must, and takes any bytes for a block without harm.
#include "store/block_codec.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/float16.h"
#include "store/store_testing.h"

namespace reprise {
namespace {

using kernels::KvType;

std::vector<std::byte> random_bytes(std::mt19937& random, size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

template <class T>
std::vector<std::byte> raw_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::pair<BlockCodec, BlockForm>> all_forms() {
  std::vector<std::pair<BlockCodec, BlockForm>> all;
  for (const BlockCodec codec : kTestCodecs) {
    for (const BlockForm form : {BlockForm::kValues, BlockForm::kCodes})
      all.emplace_back(codec, form);
  }
  return all;
}

TEST(BlockCodec, NamesAndBitsGoBothWays) {
  for (const BlockCodec codec : kTestCodecs) {
    EXPECT_EQ(parse_codec(codec_name(codec)).value(), codec);
    EXPECT_EQ(codec_from_bits(codec_bits(codec)).value(), codec);
  }
  EXPECT_EQ(parse_codec("lz4").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(codec_from_bits(4).error().code, ErrorCode::kCorrupt);
}

// Any bytes, numbers or not.
TEST(BlockCodec, CompressionLosesNothing) {
  std::mt19937 random(1);
  for (const KvType type : {KvType::kBF16, KvType::kF32}) {
    for (size_t values = 1; values < 3000; values = values * 3 / 2 + 1) {
      const auto raw = random_bytes(random, values * (type == KvType::kF32 ? 4 : 2));
      const auto encoded = encode_block({.zstd = true}, type, raw);
      ASSERT_TRUE(encoded);
      EXPECT_LE(encoded->size(), most_encoded_bytes({.zstd = true}, type, raw.size()));
      std::vector<std::byte> back(raw.size());
      ASSERT_TRUE(decode_block({.zstd = true}, BlockForm::kValues, type, *encoded, back));
      EXPECT_EQ(back, raw);
    }
  }
}

TEST(BlockCodec, CompressesExponents) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<Bf16> values(100'000);
  for (Bf16& value : values) value = to_bf16(normal(random));
  const auto raw = raw_of(values);
  EXPECT_LT(encode_block({.zstd = true}, KvType::kBF16, raw)->size(), raw.size() * 3 / 4);
  EXPECT_EQ(encode_block({.q8_0 = true}, KvType::kBF16, raw)->size(), 100'000u * 34 / 32);
}

// Half a step of the scale that 32 values share, and 127 times what rounding to f16 changes of the
// scale: a part in 2^11, or 2^-25 where it is subnormal.
TEST(BlockCodec, RoundingIsWithinHalfAStep) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const size_t count : {1u, 31u, 32u, 33u, 1000u}) {
    std::vector<float> values(count), back(count);
    for (size_t i = 0; i < count; ++i)
      values[i] = normal(random) * std::ldexp(1.f, int(i % 32) - 15);
    const auto encoded = encode_block({.q8_0 = true}, KvType::kF32, raw_of(values));
    ASSERT_TRUE(encoded);
    EXPECT_EQ(encoded->size(), most_encoded_bytes({.q8_0 = true}, KvType::kF32, count * 4));
    ASSERT_TRUE(decode_block({.q8_0 = true}, BlockForm::kValues, KvType::kF32, *encoded,
                             std::as_writable_bytes(std::span(back))));
    for (size_t i = 0; i < count; ++i) {
      float largest = 0;
      for (size_t j = i / 32 * 32; j < std::min(count, i / 32 * 32 + 32); ++j) {
        largest = std::max(largest, std::abs(values[j]));
      }
      const float scale = largest / 127, moved = std::max(scale * 0x1p-11f, 0x1p-25f);
      EXPECT_LE(std::abs(back[i] - values[i]), (scale + moved) / 2 + 127 * moved) << i;
    }
  }
}

TEST(BlockCodec, RefusesToRoundWhatIsNoNumber) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e9f}) {
    const std::vector<float> values = {1, 2, bad};
    const auto encoded = encode_block({.q8_0 = true}, KvType::kF32, raw_of(values));
    ASSERT_FALSE(encoded);
    EXPECT_EQ(encoded.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(encode_block({.zstd = true}, KvType::kF32, raw_of(values)));
  }
}

// What a device makes values of.
TEST(BlockCodec, CodesTimesScalesAreValues) {
  const auto raw = make_chunk(30).blocks;
  const size_t values = raw.size() / sizeof(Bf16);
  for (const BlockCodec codec : kTestCodecs) {
    const auto encoded = *encode_block(codec, KvType::kBF16, raw);
    std::vector<Bf16> want(values);
    ASSERT_TRUE(decode_block(codec, BlockForm::kValues, KvType::kBF16, encoded,
                             std::as_writable_bytes(std::span(want))));
    std::vector<std::byte> got(form_bytes(codec, BlockForm::kCodes, KvType::kBF16, raw.size()));
    ASSERT_TRUE(decode_block(codec, BlockForm::kCodes, KvType::kBF16, encoded, got));
    if (!codec.q8_0) {
      EXPECT_EQ(got, raw_of(want));
      continue;
    }
    ASSERT_EQ(got.size(), values + (values + 31) / 32 * sizeof(F16));
    for (size_t i = 0; i < values; ++i) {
      F16 scale;
      std::memcpy(&scale, &got[values + i / 32 * sizeof scale], sizeof scale);
      const auto code = static_cast<float>(static_cast<int8_t>(got[i]));
      ASSERT_EQ(to_bf16(code * to_float(scale)).bits, want[i].bits) << i;
    }
  }
}

// Checksums find damage first; what passes them must do no harm either.
TEST(BlockCodec, TakesAnyBytes) {
  std::mt19937 random(4);
  const auto raw = make_chunk(30).blocks;
  for (const auto& [codec, form] : all_forms()) {
    std::vector<std::byte> back(form_bytes(codec, form, KvType::kBF16, raw.size()));
    const auto whole = *encode_block(codec, KvType::kBF16, raw);
    int refused = 0;
    for (int round = 0; round < 2000; ++round) {
      auto bytes = round % 4 == 0 ? random_bytes(random, random() % 2000) : whole;
      if (round % 4 == 1) bytes.resize(random() % bytes.size());
      if (round % 4 == 2) bytes.resize(bytes.size() + 1 + random() % 50);
      if (round % 4 == 3) bytes[random() % bytes.size()] ^= std::byte{0x10};
      const Status status = decode_block(codec, form, KvType::kBF16, bytes, back);
      if (status) continue;
      ++refused;
      ASSERT_EQ(status.error().code, ErrorCode::kCorrupt);
    }
    EXPECT_GE(refused, 1490) << codec_name(codec);
  }
  const auto larger = *encode_block({.zstd = true}, KvType::kBF16, raw);
  std::vector<std::byte> back(raw.size() - 2);
  EXPECT_FALSE(decode_block({.zstd = true}, BlockForm::kValues, KvType::kBF16, larger, back));
}

}  // namespace
}  // namespace reprise
