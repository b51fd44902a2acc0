#include "formats/bad_files.h"
#include "formats/safetensors.h"
#include "formats/safetensors_builder.h"

namespace reprise::test {
namespace {

using enum ErrorCode;
using namespace std::string_literals;

BadFile bad_bytes(std::string name, ErrorCode code, std::string bytes) {
  return {"safetensors_"s + std::move(name), code, [bytes = std::move(bytes)] {
            return status_of(parse_safetensors(as_bytes(bytes), kBadName));
          }};
}
// A header and 16 bytes of data.
BadFile bad(std::string name, ErrorCode code, const std::string& header) {
  return bad_bytes(std::move(name), code, safetensors(header, std::string(16, '\0')));
}
// A file with the one tensor "t" of 16 bytes.
BadFile bad_entry(std::string name, ErrorCode code, std::string_view dtype, std::string_view shape,
                  size_t begin = 0, size_t end = 16) {
  return bad(std::move(name), code, "{"s + safetensors_entry("t", dtype, shape, begin, end) + "}");
}

std::string header_length(uint64_t length) {
  return ByteWriter().u64(length).raw("{}      ").bytes();
}

std::vector<BadFile> bad_headers() {
  const std::string entry = safetensors_entry("t", "F32", "[4]", 0, 16);
  const std::string deep = "{\"t\":"s + std::string(100000, '[');
  return {
      bad_bytes("empty", kTruncated, ""),
      bad_bytes("seven_bytes", kTruncated, "\2\0\0\0\0\0\0"s),
      bad_bytes("header_length_max", kBadCount, header_length(~uint64_t{0})),
      bad_bytes("header_length_over_limit", kBadCount, header_length(100'000'001)),
      bad_bytes("header_length_past_end", kTruncated, header_length(9)),
      bad_bytes("header_length_0", kBadJson, header_length(0)),
      bad_bytes("header_length_1", kBadJson, header_length(1)),
      bad("header_list", kBadJson, "[]"),
      bad("header_leading_space", kBadJson, " {"s + entry + "}"),
      bad("header_unclosed", kBadJson, "{"s + entry),
      bad("header_trailing_text", kBadJson, "{"s + entry + "}x"),
      bad("header_trailing_comma", kBadJson, "{"s + entry + ",}"),
      bad("header_not_utf8", kBadJson, "{\"\xff\":1}"),
      bad("header_nul", kBadJson, std::string("{\0}", 3)),
      bad("header_deep", kTooDeep, deep),
      bad("header_deep_objects", kTooDeep, R"({"t":{"a":{"b":{"c":{}}}}})"),
      bad("tensor_twice", kDuplicateKey, "{"s + entry + "," + entry + "}"),
      bad("field_twice", kDuplicateKey, R"({"t":{"dtype":"F32","dtype":"F32"}})"),
      bad("metadata_list", kBadType, R"({"__metadata__":[],)"s + entry + "}"),
      bad("metadata_number", kBadType, R"({"__metadata__":{"a":1},)"s + entry + "}"),
      bad("name_empty", kBadString, "{"s + safetensors_entry("", "F32", "[4]", 0, 16) + "}"),
      bad("name_nul", kBadString, "{"s + safetensors_entry("\\u0000", "F32", "[4]", 0, 16) + "}"),
      bad("entry_number", kBadJson, R"({"t":1})"),
      bad("entry_empty", kBadJson, R"({"t":{}})"),
      bad("no_dtype", kBadJson, R"({"t":{"shape":[4],"data_offsets":[0,16]}})"),
      bad("no_shape", kBadJson, R"({"t":{"dtype":"F32","data_offsets":[0,16]}})"),
      bad("no_offsets", kBadJson, R"({"t":{"dtype":"F32","shape":[4]}})"),
      bad("dtype_number", kBadType, R"({"t":{"dtype":0,"shape":[4],"data_offsets":[0,16]}})"),
      bad("shape_number", kBadShape, R"({"t":{"dtype":"F32","shape":4,"data_offsets":[0,16]}})"),
      bad("offsets_one", kBadOffset, R"({"t":{"dtype":"F32","shape":[4],"data_offsets":[16]}})"),
      bad("offsets_three", kBadOffset,
          R"({"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16,0]}})"),
      bad("offsets_negative", kBadOffset,
          R"({"t":{"dtype":"F32","shape":[4],"data_offsets":[-16,0]}})"),
      bad("offsets_text", kBadOffset,
          R"({"t":{"dtype":"F32","shape":[4],"data_offsets":["0","16"]}})"),
      bad("offset_beyond_64_bits", kBadOffset,
          R"({"t":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551616]}})"),
      bad("number_too_large", kBadJson, R"({"t":{"shape":[1e999]}})"),
  };
}

std::vector<BadFile> bad_entries() {
  const auto two = [](size_t begin_a, size_t end_a, size_t begin_b, size_t end_b) {
    return "{"s + safetensors_entry("a", "BF16", "[4]", begin_a, end_a) + "," +
           safetensors_entry("b", "BF16", "[4]", begin_b, end_b) + "}";
  };
  const std::string hole = "{"s + safetensors_entry("a", "BF16", "[2]", 0, 4) + "," +
                           safetensors_entry("b", "BF16", "[4]", 8, 16) + "}";
  const std::string odd = "{"s + safetensors_entry("a", "BF16", "[1]", 0, 2) + "," +
                          safetensors_entry("b", "F32", "[3]", 2, 14) + "," +
                          safetensors_entry("c", "BF16", "[1]", 14, 16) + "}";
  return {
      bad_entry("dtype_unknown", kBadType, "F33", "[4]"),
      bad_entry("dtype_lower_case", kBadType, "f32", "[4]"),
      bad_entry("dtype_i64", kUnsupportedType, "I64", "[2]"),
      bad_entry("dtype_fp8", kUnsupportedType, "F8_E4M3", "[16]"),
      bad_entry("dtype_bool", kUnsupportedType, "BOOL", "[16]"),
      bad_entry("shape_negative", kBadShape, "F32", "[-4]"),
      bad_entry("shape_fraction", kBadShape, "F32", "[4.0]"),
      bad_entry("shape_zero", kBadShape, "F32", "[4,0]"),
      bad_entry("shape_text", kBadShape, "F32", R"(["4"])"),
      bad_entry("shape_nested", kBadShape, "F32", "[{}]"),
      bad_entry("shape_9_dims", kBadShape, "F32", "[1,1,1,1,1,1,1,1,4]"),
      bad_entry("shape_overflow", kSizeOverflow, "F32", "[4294967296,4294967296]"),
      bad_entry("shape_wraps_to_16", kSizeOverflow, "F32", "[4611686018427387905,4]"),
      bad_entry("size_too_small", kBadShape, "F32", "[5]"),
      bad_entry("size_too_large", kBadShape, "F32", "[3]"),
      bad_entry("scalar_of_16_bytes", kBadShape, "F32", "[]"),
      bad_entry("end_past_data", kTruncated, "F32", "[8]", 0, 32),
      bad_entry("begin_past_data", kTruncated, "F32", "[4]", 1 << 20, (1 << 20) + 16),
      bad_entry("begin_after_end", kBadOffset, "F32", "[4]", 16, 0),
      bad_entry("hole_at_start", kBadOffset, "F32", "[2]", 8, 16),
      bad_entry("bytes_at_end", kBadOffset, "F32", "[2]", 0, 8),
      bad("no_tensor_but_data", kBadOffset, "{}"),
      bad("overlap", kBadOffset, two(0, 8, 4, 12)),
      bad("same_place", kBadOffset, two(0, 8, 0, 8)),
      bad("hole", kBadOffset, hole),
      bad("misaligned", kBadOffset, odd),
  };
}

}  // namespace

std::vector<BadFile> bad_safetensors() {
  auto all = bad_headers();
  for (BadFile& file : bad_entries()) all.push_back(std::move(file));
  return all;
}

}  // namespace reprise::test
