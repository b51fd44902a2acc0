#include <cmath>
#include <limits>

#include "formats/bad_files.h"
#include "formats/sentencepiece_builder.h"
#include "formats/tokenizer_data.h"

namespace reprise::test {
namespace {

using enum ErrorCode;
using namespace std::string_literals;

BadFile bad(std::string name, ErrorCode code, std::string bytes) {
  return {"sentencepiece_"s + std::move(name), code,
          [bytes = std::move(bytes)] { return status_of(parse_sentencepiece(bytes, kBadName)); }};
}
// The good model followed by more.
BadFile bad_more(std::string name, ErrorCode code, std::string_view more) {
  return bad(std::move(name), code, small_sentencepiece().bytes() + std::string(more));
}
BadFile bad_piece(std::string name, ErrorCode code, const ProtobufWriter& piece) {
  return bad_more("piece_"s + std::move(name), code,
                  ProtobufWriter().text(1, piece.bytes()).bytes());
}
BadFile bad_trainer(std::string name, ErrorCode code, const ProtobufWriter& trainer) {
  return bad_more("trainer_"s + std::move(name), code,
                  ProtobufWriter().text(2, trainer.bytes()).bytes());
}

}  // namespace

std::vector<BadFile> bad_sentencepiece() {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::string piece = sentencepiece_piece("x", 0, 1);
  using Writer = ProtobufWriter;
  return {
      bad("empty", kBadCount, ""),
      bad("no_pieces", kBadCount, Writer().text(2, Writer().number(3, 2).bytes()).bytes()),
      bad("text_file", kBadType, "this is text"),
      bad_more("tag_cut", kTruncated, "\x80"),
      bad_more("tag_overlong", kBadValue, std::string(10, '\xff') + "\1"),
      bad_more("varint_cut", kTruncated, "\x20\xff"),
      bad_more("varint_overlong", kBadValue, "\x20"s + std::string(9, '\xff') + "\x02"),
      bad_more("field_0", kBadValue, std::string("\0\0", 2)),
      bad_more("field_number_2_to_29", kBadValue, "\x80\x80\x80\x80\x10"),
      bad_more("group", kBadType, "\x0b"),
      bad_more("wire_type_6", kBadType, "\x26"),
      bad_more("fixed32_cut", kTruncated, "\x25\1\2\3"),
      bad_more("fixed64_cut", kTruncated, "\x21\1\2\3\4\5\6\7"),
      bad_more("length_past_end", kBadCount, "\x0a\5abcd"),
      bad_more("length_max", kBadCount, "\x0a"s + std::string(9, '\xff') + "\1"),
      bad_more("pieces_as_number", kBadType, Writer().number(1, 5).bytes()),
      bad_more("trainer_as_number", kBadType, Writer().number(2, 5).bytes()),
      bad_piece("text_as_number", kBadType, Writer().number(1, 5)),
      bad_piece("score_as_number", kBadType, Writer().text(1, "x").number(2, 5)),
      bad_piece("type_as_text", kBadType, Writer().text(1, "x").text(3, "1")),
      bad_piece("length_past_piece", kBadCount, Writer().tag(1, 2).varint(100)),
      bad_piece("type_0", kBadValue, Writer().text(1, "x").number(3, 0)),
      bad_piece("type_7", kBadValue, Writer().text(1, "x").number(3, 7)),
      bad_piece("type_max", kBadValue, Writer().text(1, "x").number(3, ~uint64_t{0})),
      bad_piece("not_utf8", kBadString, Writer().text(1, "x\xff")),
      bad_piece("score_infinite", kBadValue, Writer().text(1, "x").real(2, infinity)),
      bad_piece("score_nan", kBadValue, Writer().text(1, "x").real(2, std::nanf(""))),
      bad_piece("byte_minus_1", kBadValue, Writer().text(1, "<0x-1>").number(3, 6)),
      bad_piece("byte_short", kBadValue, Writer().text(1, "<0x1>").number(3, 6)),
      bad_piece("no_text", kBadValue, Writer().number(3, 3)),
      bad_piece("empty_text", kBadValue, Writer().text(1, "")),
      bad_piece("empty", kBadValue, Writer()),
      bad_trainer("space_as_suffix", kUnsupportedTokenizer, Writer().number(24, 1)),
      bad_trainer("type_word", kUnsupportedTokenizer, Writer().number(3, 3)),
      bad_trainer("type_max", kUnsupportedTokenizer, Writer().number(3, ~uint64_t{0})),
      bad_trainer("type_text", kBadType, Writer().text(3, "bpe")),
      bad_trainer("bos_outside", kBadValue, Writer().number(41, 7)),
      bad_trainer("eos_int32_max", kBadValue, Writer().number(42, 0x7fffffff)),
      bad_trainer("unknown_wraps", kBadValue, Writer().number(40, uint64_t{1} << 32)),
      bad_trainer("cut_inside", kTruncated, Writer().tag(3, 0)),
      bad_more("normalizer_cut", kTruncated, Writer().text(3, "\x18").bytes()),
      bad_more("normalizer_flag_as_text", kBadType,
               Writer().text(3, Writer().text(3, "yes").bytes()).bytes()),
      bad_more("charsmap_as_number", kBadType,
               Writer().text(3, Writer().number(2, 1).bytes()).bytes()),
      bad_more("piece_repeated_cut", kBadCount, Writer().text(1, piece).bytes() + "\x0a\x7f"),
  };
}

}  // namespace reprise::test
