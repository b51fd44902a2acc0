// Writes SentencePiece models (protobuf wire format) for tests.
#pragma once

#include <bit>
#include <string>
#include <string_view>

#include "formats/byte_writer.h"

namespace reprise::test {

class ProtobufWriter {
 public:
  ProtobufWriter& varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.u8(static_cast<uint8_t>(value | 0x80));
    bytes_.u8(static_cast<uint8_t>(value));
    return *this;
  }
  ProtobufWriter& tag(uint32_t field, uint32_t wire) { return varint(field << 3 | wire); }
  ProtobufWriter& number(uint32_t field, uint64_t value) { return tag(field, 0).varint(value); }
  ProtobufWriter& real(uint32_t field, float value) {
    tag(field, 5);
    bytes_.f32(value);
    return *this;
  }
  ProtobufWriter& text(uint32_t field, std::string_view value) {
    tag(field, 2).varint(value.size());
    bytes_.raw(value);
    return *this;
  }
  const std::string& bytes() const { return bytes_.bytes(); }

 private:
  ByteWriter bytes_;
};

inline std::string sentencepiece_piece(std::string_view text, float score, uint64_t type) {
  return ProtobufWriter().text(1, text).real(2, score).number(3, type).bytes();
}

/// Pieces <unk>, <s>, </s>, <0x41>, a, b, ab of a BPE model with byte fallback.
inline ProtobufWriter small_sentencepiece() {
  ProtobufWriter model;
  model.text(1, sentencepiece_piece("<unk>", 0, 2)).text(1, sentencepiece_piece("<s>", 0, 3));
  model.text(1, sentencepiece_piece("</s>", 0, 3)).text(1, sentencepiece_piece("<0x41>", 0, 6));
  model.text(1, sentencepiece_piece("a", -2, 1)).text(1, sentencepiece_piece("b", -3, 1));
  model.text(1, sentencepiece_piece("ab", -1, 1));
  model.text(2, ProtobufWriter().number(3, 2).number(35, 1).bytes());
  model.text(3, ProtobufWriter().text(1, "identity").number(3, 1).number(4, 0).bytes());
  return model;
}

}  // namespace reprise::test
