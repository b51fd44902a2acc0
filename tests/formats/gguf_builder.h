// Writes small GGUF files for tests.
#pragma once

#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/tensor_type.h"
#include "formats/byte_writer.h"

namespace reprise::test {

/// GGUF's number of a metadata type.
template <class T>
constexpr uint32_t gguf_tag() {
  if constexpr (std::is_same_v<T, bool>) {
    return 7;
  } else if constexpr (std::is_floating_point_v<T>) {
    return sizeof(T) == 4 ? 6 : 12;
  } else {
    constexpr uint32_t kUnsigned[] = {0, 2, 4, 10}, kSigned[] = {1, 3, 5, 11};
    return (std::is_signed_v<T> ? kSigned : kUnsigned)[std::bit_width(sizeof(T)) - 1];
  }
}
constexpr uint32_t kGgufString = 8, kGgufArray = 9;

/// ggml's number of a tensor type.
constexpr uint32_t ggml_number(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return 0;
    case TensorType::kF16:
      return 1;
    case TensorType::kBF16:
      return 30;
    case TensorType::kQ8_0:
      return 8;
    case TensorType::kQ4_0:
      return 2;
    case TensorType::kQ4_1:
      return 3;
    case TensorType::kQ5_0:
      return 6;
    case TensorType::kQ5_1:
      return 7;
    case TensorType::kQ2_K:
      return 10;
    case TensorType::kQ3_K:
      return 11;
    case TensorType::kQ4_K:
      return 12;
    case TensorType::kQ5_K:
      return 13;
    case TensorType::kQ6_K:
      return 14;
    case TensorType::kIQ4_NL:
      return 20;
  }
  return 0;
}

class GgufBuilder {
 public:
  GgufBuilder& version(uint32_t value) {
    version_ = value;
    return *this;
  }
  /// Alignment of the tensor data; written as general.alignment when it is not 32.
  GgufBuilder& alignment(uint32_t value) {
    alignment_ = value;
    return add("general.alignment", value);
  }
  template <class T>
  requires std::is_arithmetic_v<T> GgufBuilder& add(std::string_view key, T value) {
    pair(key, gguf_tag<T>()).put(value);
    return *this;
  }
  GgufBuilder& add(std::string_view key, std::string_view value) {
    pair(key, kGgufString).str(value);
    return *this;
  }
  GgufBuilder& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  template <class T>
  GgufBuilder& add_array(std::string_view key, const std::vector<T>& values) {
    pair(key, kGgufArray).u32(gguf_tag<T>()).u64(values.size());
    for (const T value : values) pairs_.put(value);
    return *this;
  }
  GgufBuilder& add_strings(std::string_view key, const std::vector<std::string>& values) {
    pair(key, kGgufArray).u32(kGgufString).u64(values.size());
    for (const auto& value : values) pairs_.str(value);
    return *this;
  }
  /// shape is row-major, outermost first, as in TensorView; bytes must have the matching length.
  GgufBuilder& tensor(std::string_view name, TensorType type, const std::vector<uint64_t>& shape,
                      std::string_view bytes) {
    data_.align(alignment_);
    directory_.str(name).u32(static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) directory_.u64(shape[i]);
    directory_.u32(ggml_number(type)).u64(data_.bytes().size());
    data_.raw(bytes);
    ++tensor_count_;
    return *this;
  }
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& shape,
                      const std::vector<float>& values) {
    const auto* bytes = reinterpret_cast<const char*>(values.data());
    return tensor(name, TensorType::kF32, shape, {bytes, values.size() * sizeof(float)});
  }

  std::string build() const {
    ByteWriter out;
    out.raw("GGUF").u32(version_).u64(tensor_count_).u64(pair_count_);
    out.raw(pairs_.bytes()).raw(directory_.bytes());
    if (tensor_count_ > 0) out.align(alignment_).raw(data_.bytes());
    return out.bytes();
  }
  void write(const std::string& path) const { write_file(path, build()); }

 private:
  ByteWriter& pair(std::string_view key, uint32_t tag) {
    ++pair_count_;
    return pairs_.str(key).u32(tag);
  }

  uint32_t version_ = 3, alignment_ = 32;
  uint64_t tensor_count_ = 0, pair_count_ = 0;
  ByteWriter pairs_, directory_, data_;
};

/// A file with every kind of value, two tensors and a GPT-2 style tokenizer.
inline GgufBuilder small_gguf() {
  GgufBuilder builder;
  builder.add("general.architecture", "llama").add("general.name", "small");
  builder.add("a.u8", uint8_t{200}).add("a.i8", int8_t{-3}).add("a.u16", uint16_t{60000});
  builder.add("a.i16", int16_t{-300}).add("a.u32", uint32_t{4000000000});
  builder.add("a.i32", int32_t{-70000}).add("a.f32", 1.5f).add("a.bool", true);
  builder.add("a.u64", uint64_t{1} << 40).add("a.i64", -(int64_t{1} << 40)).add("a.f64", 0.25);
  builder.add_array<int32_t>("a.ints", {1, -2, 3}).add_array<float>("a.floats", {0.5f, -1.0f});
  builder.add_array<bool>("a.bools", {true, false});
  builder.add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "default");
  builder.add_strings("tokenizer.ggml.tokens", {"a", "b", "ab", "<|im_end|>", "<s>"});
  builder.add_array<int32_t>("tokenizer.ggml.token_type", {1, 1, 1, 3, 3});
  builder.add_strings("tokenizer.ggml.merges", {"a b"});
  builder.add("tokenizer.ggml.bos_token_id", uint32_t{4});
  builder.add("tokenizer.ggml.add_bos_token", true);
  builder.tensor("weight", {2, 3}, {0, 1, 2, 3, 4, 5});
  builder.tensor("blocks", TensorType::kQ4_1, {2, 32}, std::string(40, '\x11'));
  return builder;
}

}  // namespace reprise::test
