#include "formats/bad_files.h"
#include "formats/gguf.h"
#include "formats/gguf_builder.h"

namespace reprise::test {
namespace {

using enum ErrorCode;

constexpr uint64_t kMax = ~uint64_t{0};

ByteWriter header(uint32_t version, uint64_t tensors, uint64_t pairs) {
  return ByteWriter().raw("GGUF").u32(version).u64(tensors).u64(pairs);
}
// The beginning of a file with one pair, up to the value.
ByteWriter one_pair(std::string_view key, uint32_t tag) {
  return header(3, 0, 1).str(key).u32(tag);
}
ByteWriter array(uint32_t tag, uint64_t count) {
  return one_pair("k", kGgufArray).u32(tag).u64(count);
}
// The beginning of a file with one tensor, up to its type.
ByteWriter one_tensor(std::string_view name, const std::vector<uint64_t>& dims) {
  ByteWriter out = header(3, 1, 0).str(name).u32(static_cast<uint32_t>(dims.size()));
  for (const uint64_t dim : dims) out.u64(dim);
  return out;
}

BadFile bad(std::string name, ErrorCode code, const ByteWriter& file) {
  return {"gguf_" + std::move(name), code,
          [bytes = file.bytes()] { return status_of(GgufFile::parse(as_bytes(bytes), kBadName)); }};
}
BadFile bad(std::string name, ErrorCode code, const GgufBuilder& file) {
  return bad(std::move(name), code, ByteWriter().raw(file.build()));
}

// A good file with tensors "a" and "b" of 32 F32 each, whose second offset is set.
ByteWriter two_tensors(uint64_t second_offset) {
  ByteWriter out = header(3, 2, 0);
  out.str("a").u32(1).u64(32).u32(0).u64(0).str("b").u32(1).u64(32).u32(0).u64(second_offset);
  return out.align(32).zeros(256);
}

}  // namespace

std::vector<BadFile> bad_gguf_headers() {
  return {
      bad("empty", kTruncated, ByteWriter()),
      bad("three_bytes", kTruncated, ByteWriter().raw("GGU")),
      bad("magic_only", kTruncated, ByteWriter().raw("GGUF")),
      bad("wrong_magic", kBadMagic, ByteWriter().raw("GGUX").zeros(20)),
      bad("old_ggjt_magic", kBadMagic, ByteWriter().raw("tjgg").zeros(20)),
      bad("version_0", kUnsupportedVersion, header(0, 0, 0)),
      bad("version_1", kUnsupportedVersion, header(1, 0, 0)),
      bad("version_4", kUnsupportedVersion, header(4, 0, 0)),
      bad("big_endian", kUnsupportedVersion, header(0x03000000, 0, 0)),
      bad("no_counts", kTruncated, ByteWriter().raw("GGUF").u32(3)),
      bad("no_pair_count", kTruncated, ByteWriter().raw("GGUF").u32(3).u64(0)),
      bad("tensor_count_max", kBadCount, header(3, kMax, 0)),
      bad("tensor_count_wraps", kBadCount, header(3, kMax / 33 + 1, 0).zeros(64)),
      bad("pair_count_max", kBadCount, header(3, 0, kMax)),
      bad("pair_count_wraps", kBadCount, header(3, 0, kMax / 14 + 1).zeros(64)),
      bad("count_sum_wraps", kBadCount, header(3, kMax / 33, kMax / 14).zeros(64)),
      bad("pair_count_too_large", kBadCount, header(3, 0, 2).str("k").u32(4).u32(1)),
      bad("key_past_end", kBadCount, header(3, 0, 1).u64(100).raw("k").zeros(8)),
      bad("key_length_max", kBadCount, header(3, 0, 1).u64(kMax).zeros(8)),
      bad("key_empty", kBadString, header(3, 0, 1).str("").u32(4).u32(1)),
      bad("key_with_nul", kBadString, one_pair(std::string_view("k\0y", 3), 4).u32(1)),
      bad("key_not_utf8", kBadString, one_pair("k\xff", 4).u32(1)),
      bad("key_overlong_utf8", kBadString, one_pair("\xc0\xaf", 4).u32(1)),
      bad("key_surrogate_utf8", kBadString, one_pair("\xed\xa0\x80", 4).u32(1)),
      bad("key_too_long", kBadCount, one_pair(std::string(65536, 'k'), 4).u32(1)),
      bad("key_twice", kDuplicateKey, GgufBuilder().add("k", 1u).add("k", 2u)),
      bad("key_twice_with_newline", kDuplicateKey, GgufBuilder().add("k\n", 1u).add("k\n", 2u)),
      bad("value_type_13", kBadType, one_pair("k", 13).u32(1)),
      bad("value_type_max", kBadType, one_pair("k", 0xffffffff).u32(1)),
      bad("value_cut", kTruncated, one_pair("k", 10).u32(1)),
      bad("value_float_cut", kTruncated, one_pair("k", 12).u32(1)),
      bad("bool_2", kBadValue, one_pair("k", 7).u8(2)),
      bad("string_cut", kTruncated, one_pair("k", kGgufString).u32(1)),
      bad("string_past_end", kBadCount, one_pair("k", kGgufString).u64(4).raw("abc")),
      bad("string_length_max", kBadCount, one_pair("k", kGgufString).u64(kMax).raw("abc")),
      bad("string_not_utf8", kBadString, GgufBuilder().add("k", "ab\x80")),
      bad("array_type_13", kBadType, array(13, 1).u64(0)),
      bad("array_header_cut", kTruncated, one_pair("k", kGgufArray).u32(4)),
      bad("array_of_arrays", kTooDeep, array(kGgufArray, 1).u32(4).u64(1).u32(1)),
      bad("array_count_past_end", kBadCount, array(4, 3).u32(1).u32(2)),
      bad("array_count_max", kBadCount, array(0, kMax).u32(1)),
      bad("array_count_wraps", kBadCount, array(10, (kMax >> 3) + 2).u64(1)),
      bad("array_strings_past_end", kBadCount, array(kGgufString, 2).str("abc")),
      bad("array_string_length_max", kBadCount, array(kGgufString, 1).u64(kMax)),
      bad("array_string_not_utf8", kBadString, GgufBuilder().add_strings("k", {"a", "\xff"})),
      bad("array_bool_7", kBadValue, array(7, 2).u8(1).u8(7)),
      bad("alignment_0", kBadValue, GgufBuilder().add("general.alignment", 0u)),
      bad("alignment_4", kBadValue, GgufBuilder().add("general.alignment", 4u)),
      bad("alignment_48", kBadValue, GgufBuilder().add("general.alignment", 48u)),
      bad("alignment_2_to_31", kBadValue, GgufBuilder().add("general.alignment", 1u << 31)),
      bad("alignment_2_to_63", kBadValue, GgufBuilder().add("general.alignment", 1ull << 63)),
      bad("alignment_signed", kBadType, GgufBuilder().add("general.alignment", 32)),
      bad("alignment_text", kBadType, GgufBuilder().add("general.alignment", "32")),
  };
}

std::vector<BadFile> bad_gguf_tensors() {
  const std::string long_name(65, 'n');
  const auto f32 = [](const std::vector<uint64_t>& dims, uint64_t offset) {
    return one_tensor("t", dims).u32(0).u64(offset).align(32);
  };
  return {
      bad("tensor_name_past_end", kBadCount, header(3, 1, 0).u64(1000).zeros(40)),
      bad("tensor_name_empty", kBadString, one_tensor("", {4}).u32(0).u64(0).zeros(32)),
      bad("tensor_name_nul", kBadString, one_tensor({"t\0", 2}, {4}).u32(0).u64(0).zeros(32)),
      bad("tensor_name_not_utf8", kBadString, one_tensor("\xfe", {4}).u32(0).u64(0).zeros(32)),
      bad("tensor_name_too_long", kBadCount, one_tensor(long_name, {4}).u32(0).u64(0)),
      bad("tensor_twice", kDuplicateKey, GgufBuilder().tensor("t", {1}, {0}).tensor("t", {1}, {0})),
      bad("tensor_no_dims", kBadShape, one_tensor("t", {}).u32(0).u64(0).zeros(32)),
      bad("tensor_5_dims", kBadShape, one_tensor("t", {1, 1, 1, 1, 1}).u32(0).u64(0)),
      bad("tensor_dims_max", kBadShape, header(3, 1, 0).str("t").u32(0xffffffff).zeros(64)),
      bad("tensor_zero_dim", kBadShape, f32({4, 0}, 0)),
      bad("tensor_elements_overflow", kSizeOverflow, f32({1ull << 32, 1ull << 32, 4}, 0)),
      bad("tensor_elements_wrap_to_4", kSizeOverflow, f32({(1ull << 62) + 1, 4}, 0)),
      bad("tensor_bytes_overflow", kSizeOverflow, f32({1ull << 62}, 0)),
      bad("tensor_dim_max", kSizeOverflow, f32({kMax}, 0)),
      bad("tensor_partial_block", kBadShape, one_tensor("t", {33}).u32(3).u64(0).zeros(64)),
      bad("tensor_partial_k_block", kBadShape, one_tensor("t", {128}).u32(12).u64(0).zeros(256)),
      bad("tensor_type_1000", kUnsupportedType, one_tensor("t", {32}).u32(1000).u64(0).zeros(64)),
      bad("tensor_type_max", kUnsupportedType, one_tensor("t", {32}).u32(~0u).u64(0).zeros(64)),
      bad("tensor_type_retired", kUnsupportedType, one_tensor("t", {32}).u32(4).u64(0).zeros(64)),
      bad("tensor_type_iq2_xxs", kUnsupportedType, one_tensor("t", {256}).u32(16).u64(0)),
      bad("tensor_type_i32", kUnsupportedType, one_tensor("t", {32}).u32(26).u64(0).zeros(128)),
      bad("tensor_entry_cut", kTruncated, one_tensor("t", {1, 1}).u32(0)),
      bad("tensor_dims_cut", kTruncated, header(3, 1, 0).str("tensor").u32(4).u64(1).u64(1)),
      bad("tensor_offset_misaligned", kBadOffset, f32({4}, 16).zeros(64)),
      bad("tensor_offset_past_end", kTruncated, f32({4}, 1 << 20).zeros(64)),
      bad("tensor_offset_wraps", kSizeOverflow, f32({4}, kMax - 31).zeros(64)),
      bad("tensor_end_wraps", kSizeOverflow, f32({1ull << 61}, kMax - (1ull << 62) + 1)),
      bad("tensor_data_missing", kTruncated, f32({4}, 0)),
      bad("tensor_data_cut", kTruncated, f32({4}, 0).zeros(15)),
      bad("tensor_of_4_terabytes", kTruncated, f32({1ull << 40}, 0).zeros(64)),
      bad("tensors_same_place", kBadOffset, two_tensors(0)),
      bad("tensors_overlap", kBadOffset, two_tensors(96)),
      bad("second_tensor_past_end", kTruncated, two_tensors(160)),
  };
}

}  // namespace reprise::test
