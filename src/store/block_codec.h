// The forms in which a layer's keys and values may be stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/kv_page.h"
#include "reprise/error.h"

namespace reprise {

/// Values are kept as they are or rounded to q8_0 (32 of them share a scale), and what that gives
/// is compressed or not.
struct BlockCodec {
  bool q8_0 = false, zstd = false;

  bool lossy() const { return q8_0; }
  /// Whether what is kept in this form need not be stored again by one who asks for another:
  /// rounded values do not stand for exact ones.
  bool serves(BlockCodec wanted) const { return wanted.lossy() || !lossy(); }
  bool operator==(const BlockCodec&) const = default;
};

/// none, zstd, q8_0 or q8_0+zstd.
std::string_view codec_name(BlockCodec codec);
/// kInvalidArgument when there is no codec of this name.
Result<BlockCodec> parse_codec(std::string_view name);

/// As a record's header has it.
uint16_t codec_bits(BlockCodec codec);
/// kCorrupt when there is no such codec.
Result<BlockCodec> codec_from_bits(uint16_t bits);

/// What a reader gets of a block: values, or, where q8_0 keeps it, codes of all values [values]
/// int8, then scales [values / 32, rounded up] f16. A value is its code times its scale, rounded
/// to the type (kernels::widen_codes).
enum class BlockForm : uint8_t { kValues, kCodes };

/// Bytes of a block of raw bytes in a form.
uint64_t form_bytes(BlockCodec codec, BlockForm form, kernels::KvType type, uint64_t raw_bytes);
/// Bytes of a block of raw bytes, at most; exact for codecs that do not compress.
uint64_t most_encoded_bytes(BlockCodec codec, kernels::KvType type, uint64_t raw_bytes);

/// raw: values of a type, bf16 or f32. kInvalidArgument when q8_0 cannot hold them.
Result<std::vector<std::byte>> encode_block(BlockCodec codec, kernels::KvType type,
                                            std::span<const std::byte> raw);
/// Fills out, form_bytes() of a block; encoded may be anything. kCorrupt when it is no block of so
/// many values.
Status decode_block(BlockCodec codec, BlockForm form, kernels::KvType type,
                    std::span<const std::byte> encoded, std::span<std::byte> out);

}  // namespace reprise
