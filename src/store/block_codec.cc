#include "store/block_codec.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float16.h"
#include "base/try.h"
#include "kernels/ops.h"

namespace reprise {
namespace {

using kernels::kScaleValues;
using kernels::KvType;
using Bytes = std::span<const std::byte>;

// Exponents compress at any level, mantissas at none: higher levels only take longer.
constexpr int kZstdLevel = 1;

struct NamedCodec {
  std::string_view name;
  BlockCodec codec;
};
constexpr std::array<NamedCodec, 4> kCodecs = {{{"none", {}},
                                                {"zstd", {.zstd = true}},
                                                {"q8_0", {.q8_0 = true}},
                                                {"q8_0+zstd", {.q8_0 = true, .zstd = true}}}};

size_t value_bytes(KvType type) { return type == KvType::kF32 ? sizeof(float) : sizeof(Bf16); }

uint64_t scales_of(uint64_t values) { return (values + kScaleValues - 1) / kScaleValues; }

float load(Bytes raw, KvType type, size_t index) {
  if (type == KvType::kF32) {
    float value;
    std::memcpy(&value, &raw[index * sizeof value], sizeof value);
    return value;
  }
  Bf16 value;
  std::memcpy(&value, &raw[index * sizeof value], sizeof value);
  return to_float(value);
}

// Codes of all values, then the scales.
Result<std::vector<std::byte>> quantize(KvType type, Bytes raw) {
  const size_t values = raw.size() / value_bytes(type);
  std::vector<std::byte> out(values + scales_of(values) * sizeof(F16));
  for (size_t group = 0; group < scales_of(values); ++group) {
    const size_t first = group * kScaleValues, count = std::min(kScaleValues, values - first);
    std::array<float, kScaleValues> x;
    float largest = 0;
    bool finite = true;
    for (size_t i = 0; i < count; ++i) {
      x[i] = load(raw, type, first + i);
      finite = finite && std::isfinite(x[i]);
      largest = std::max(largest, std::abs(x[i]));
    }
    const F16 scale = to_f16(largest / 127);
    if (!finite || !std::isfinite(to_float(scale))) {
      return fail(ErrorCode::kInvalidArgument,
                  "KV holds values that q8_0 cannot; store it in another form");
    }
    const float inverse = to_float(scale) > 0 ? 1 / to_float(scale) : 0;
    for (size_t i = 0; i < count; ++i) {
      const float code = std::clamp(std::nearbyint(x[i] * inverse), -127.0f, 127.0f);
      out[first + i] = static_cast<std::byte>(static_cast<int8_t>(code));
    }
    std::memcpy(&out[values + group * sizeof scale], &scale, sizeof scale);
  }
  return out;
}

void dequantize(KvType type, Bytes q8, std::span<std::byte> raw) {
  const size_t values = raw.size() / value_bytes(type);
  const std::byte* scales = q8.data() + values;
  if (type == KvType::kBF16) {
    return kernels::widen_codes(q8.data(), scales, values, reinterpret_cast<Bf16*>(raw.data()));
  }
  for (size_t i = 0; i < values; ++i) {
    F16 scale;
    std::memcpy(&scale, scales + i / kScaleValues * sizeof scale, sizeof scale);
    const float value = static_cast<float>(static_cast<int8_t>(q8[i])) * to_float(scale);
    std::memcpy(&raw[i * sizeof value], &value, sizeof value);
  }
}

// All lowest bytes, then all next ones: exponents stand side by side and compress.
template <size_t kWidth>
void split_bytes(Bytes raw, std::span<std::byte> planes) {
  const size_t values = raw.size() / kWidth;
  for (size_t i = 0; i < values; ++i) {
    for (size_t byte = 0; byte < kWidth; ++byte) planes[byte * values + i] = raw[i * kWidth + byte];
  }
}

template <size_t kWidth>
void join_bytes(Bytes planes, std::span<std::byte> raw) {
  const size_t values = raw.size() / kWidth;
  for (size_t i = 0; i < values; ++i) {
    for (size_t byte = 0; byte < kWidth; ++byte) raw[i * kWidth + byte] = planes[byte * values + i];
  }
}

Result<std::vector<std::byte>> compress(Bytes plain) {
  std::vector<std::byte> out(ZSTD_compressBound(plain.size()));
  const size_t size = ZSTD_compress(out.data(), out.size(), plain.data(), plain.size(), kZstdLevel);
  if (ZSTD_isError(size) != 0) {
    return fail(ErrorCode::kOutOfMemory, "cannot compress KV: {}", ZSTD_getErrorName(size));
  }
  out.resize(size);
  return out;
}

Status decompress(Bytes encoded, std::span<std::byte> plain) {
  const size_t size = ZSTD_decompress(plain.data(), plain.size(), encoded.data(), encoded.size());
  if (ZSTD_isError(size) == 0 && size == plain.size()) return {};
  return fail(ErrorCode::kCorrupt, "compressed KV is damaged: {}",
              ZSTD_isError(size) != 0 ? ZSTD_getErrorName(size) : "it is too short");
}

}  // namespace

std::string_view codec_name(BlockCodec codec) {
  return std::ranges::find(kCodecs, codec, &NamedCodec::codec)->name;
}

Result<BlockCodec> parse_codec(std::string_view name) {
  const auto* found = std::ranges::find(kCodecs, name, &NamedCodec::name);
  if (found != kCodecs.end()) return found->codec;
  return fail(ErrorCode::kInvalidArgument,
              "there is no codec \"{}\"; there are none, zstd, q8_0 and q8_0+zstd", name);
}

uint16_t codec_bits(BlockCodec codec) {
  return static_cast<uint16_t>((codec.q8_0 ? 1 : 0) | (codec.zstd ? 2 : 0));
}

Result<BlockCodec> codec_from_bits(uint16_t bits) {
  if (bits > 3) return fail(ErrorCode::kCorrupt, "a chunk of codec {}", bits);
  return BlockCodec{(bits & 1) != 0, (bits & 2) != 0};
}

uint64_t form_bytes(BlockCodec codec, BlockForm form, KvType type, uint64_t raw_bytes) {
  if (!codec.q8_0 || form == BlockForm::kValues) return raw_bytes;
  const uint64_t values = raw_bytes / value_bytes(type);
  return values + scales_of(values) * sizeof(F16);
}

uint64_t most_encoded_bytes(BlockCodec codec, KvType type, uint64_t raw_bytes) {
  const uint64_t plain = form_bytes(codec, BlockForm::kCodes, type, raw_bytes);
  return codec.zstd ? ZSTD_compressBound(plain) : plain;
}

Result<std::vector<std::byte>> encode_block(BlockCodec codec, KvType type, Bytes raw) {
  std::vector<std::byte> plain;
  if (codec.q8_0) {
    REPRISE_TRY(plain, quantize(type, raw));
  } else {
    plain.assign(raw.begin(), raw.end());
    if (codec.zstd) {
      type == KvType::kF32 ? split_bytes<4>(raw, plain) : split_bytes<2>(raw, plain);
    }
  }
  return codec.zstd ? compress(plain) : Result<std::vector<std::byte>>(std::move(plain));
}

Status decode_block(BlockCodec codec, BlockForm form, KvType type, Bytes encoded,
                    std::span<std::byte> out) {
  const bool widens = codec.q8_0 && form == BlockForm::kValues;
  const bool joins = codec.zstd && !codec.q8_0;
  if (codec.zstd && !widens && !joins) return decompress(encoded, out);
  const uint64_t bytes =
      widens ? form_bytes(codec, BlockForm::kCodes, type, out.size()) : out.size();
  std::vector<std::byte> plain;
  if (codec.zstd) {
    plain.resize(bytes);
    REPRISE_CHECK(decompress(encoded, plain));
    encoded = plain;
  }
  if (encoded.size() != bytes) {
    return fail(ErrorCode::kCorrupt, "a block of {} bytes stands for one of {}", encoded.size(),
                bytes);
  }
  if (widens) {
    dequantize(type, encoded, out);
  } else if (joins) {
    type == KvType::kF32 ? join_bytes<4>(encoded, out) : join_bytes<2>(encoded, out);
  } else {
    std::ranges::copy(encoded, out.begin());
  }
  return {};
}

}  // namespace reprise
