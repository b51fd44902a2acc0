// tokenizer.model: the ModelProto of SentencePiece (sentencepiece_model.proto).
#include <bit>
#include <limits>

#include "base/try.h"
#include "formats/printable.h"
#include "formats/protobuf.h"
#include "formats/tokenizer_check.h"

namespace reprise {
namespace {

using Wire = ProtobufField::Wire;

enum ModelField : uint32_t { kPieces = 1, kTrainer = 2, kNormalizer = 3 };
enum PieceField : uint32_t { kPiece = 1, kScore = 2, kType = 3 };
enum TrainerField : uint32_t {
  kModelType = 3,
  kSpaceAsSuffix = 24,
  kByteFallback = 35,
  kUnknownId = 40,
  kBosId = 41,
  kEosId = 42,
  kPadId = 43
};
enum NormalizerField : uint32_t { kCharsMap = 2, kAddDummyPrefix = 3, kRemoveExtraSpaces = 4 };

constexpr uint64_t kUnigramType = 1, kBpeType = 2;
constexpr uint64_t kMaxPieceType = 6;

// Calls visit(field) for every field of a message.
template <class Visit>
Status for_each_field(std::string_view bytes, std::string_view file, Visit visit) {
  ProtobufReader reader(bytes, file);
  for (;;) {
    REPRISE_TRY(const auto field, reader.next());
    if (!field) return {};
    REPRISE_CHECK(visit(*field));
  }
}

Status check_wire(const ProtobufField& field, Wire wanted, std::string_view file,
                  std::string_view what) {
  if (field.wire == wanted) return {};
  return fail(ErrorCode::kBadType, "{}: {} has wire type {}", file, what,
              static_cast<int>(field.wire));
}

Status read_piece(std::string_view bytes, std::string_view file, TokenizerData& data) {
  std::string_view text;
  float score = 0;
  uint64_t type = 1;
  const auto visit = [&](const ProtobufField& field) -> Status {
    switch (field.id) {
      case kPiece:
        REPRISE_CHECK(check_wire(field, Wire::kBytes, file, "a piece's text"));
        text = field.bytes;
        return {};
      case kScore:
        REPRISE_CHECK(check_wire(field, Wire::kFixed32, file, "a piece's score"));
        score = std::bit_cast<float>(static_cast<uint32_t>(field.number));
        return {};
      case kType:
        REPRISE_CHECK(check_wire(field, Wire::kVarint, file, "a piece's type"));
        type = field.number;
        return {};
      default:
        return {};
    }
  };
  REPRISE_CHECK(for_each_field(bytes, file, visit));
  if (text.empty()) {
    return fail(ErrorCode::kBadValue, "{}: piece {} has no text", file, data.tokens.size());
  }
  if (!is_utf8(text)) {
    return fail(ErrorCode::kBadString, "{}: piece {} is not valid UTF-8", file, data.tokens.size());
  }
  if (type < 1 || type > kMaxPieceType) {
    return fail(ErrorCode::kBadValue, "{}: piece {} has type {}; 1 to {} are defined", file,
                printable(text), type, kMaxPieceType);
  }
  data.tokens.emplace_back(text);
  data.scores.push_back(score);
  data.kinds.push_back(static_cast<TokenKind>(type - 1));
  return {};
}

// What the trainer wrote down; ids follow the defaults of the schema until a field says otherwise.
struct Trainer {
  uint64_t model_type = kUnigramType;
  bool byte_fallback = false;
  bool space_as_suffix = false;
  uint64_t unknown = 0, bos = 1, eos = 2, pad = std::numeric_limits<uint64_t>::max();
};

Status read_trainer(std::string_view bytes, std::string_view file, Trainer& trainer) {
  return for_each_field(bytes, file, [&](const ProtobufField& field) -> Status {
    const auto number_into = [&](auto& value) -> Status {
      REPRISE_CHECK(check_wire(field, Wire::kVarint, file, "a trainer setting"));
      value = static_cast<std::remove_reference_t<decltype(value)>>(field.number);
      return {};
    };
    switch (field.id) {
      case kModelType:
        return number_into(trainer.model_type);
      case kSpaceAsSuffix:
        return number_into(trainer.space_as_suffix);
      case kByteFallback:
        return number_into(trainer.byte_fallback);
      case kUnknownId:
        return number_into(trainer.unknown);
      case kBosId:
        return number_into(trainer.bos);
      case kEosId:
        return number_into(trainer.eos);
      case kPadId:
        return number_into(trainer.pad);
      default:
        return {};
    }
  });
}

Status read_normalizer(std::string_view bytes, std::string_view file, TokenizerData& data) {
  return for_each_field(bytes, file, [&](const ProtobufField& field) -> Status {
    switch (field.id) {
      case kCharsMap:
        REPRISE_CHECK(check_wire(field, Wire::kBytes, file, "the character map"));
        if (field.bytes.empty()) return {};
        data.normalizers.emplace_back().kind = "Precompiled";
        data.normalizers.back().content = field.bytes;
        return {};
      case kAddDummyPrefix:
        REPRISE_CHECK(check_wire(field, Wire::kVarint, file, "a normalizer setting"));
        data.add_space_prefix = field.number != 0;
        return {};
      case kRemoveExtraSpaces:
        REPRISE_CHECK(check_wire(field, Wire::kVarint, file, "a normalizer setting"));
        data.remove_extra_whitespaces = field.number != 0;
        return {};
      default:
        return {};
    }
  });
}

// Negative ids (as 64-bit varints) mean that the model has no such token.
Result<std::optional<int32_t>> special_id(uint64_t id, size_t vocab, std::string_view file) {
  if (static_cast<int32_t>(id) < 0) return std::optional<int32_t>();
  if (id >= vocab) {
    return fail(ErrorCode::kBadValue, "{}: special id {} is outside the vocabulary of {}", file, id,
                vocab);
  }
  return static_cast<int32_t>(id);
}

Status apply_trainer(const Trainer& trainer, std::string_view file, TokenizerData& data) {
  if (trainer.model_type == kUnigramType) {
    data.model = TokenizerModel::kUnigram;
  } else if (trainer.model_type == kBpeType) {
    data.model = TokenizerModel::kSentencePieceBpe;
  } else {
    return fail(ErrorCode::kUnsupportedTokenizer,
                "{}: model type {} is not known; unigram (1) and BPE (2) are", file,
                trainer.model_type);
  }
  if (trainer.space_as_suffix) {
    return fail(ErrorCode::kUnsupportedTokenizer,
                "{}: pieces end in their spaces (treat_whitespace_as_suffix), which is not known",
                file);
  }
  data.byte_fallback = trainer.byte_fallback;
  const size_t vocab = data.tokens.size();
  REPRISE_TRY(data.unknown, special_id(trainer.unknown, vocab, file));
  REPRISE_TRY(data.bos, special_id(trainer.bos, vocab, file));
  REPRISE_TRY(data.eos, special_id(trainer.eos, vocab, file));
  REPRISE_TRY(data.pad, special_id(trainer.pad, vocab, file));
  data.add_bos = data.model == TokenizerModel::kSentencePieceBpe && data.bos.has_value();
  return {};
}

}  // namespace

Result<TokenizerData> parse_sentencepiece(std::string_view bytes, std::string_view name) {
  TokenizerData data;
  data.remove_extra_whitespaces = true;  // the schema's default
  Trainer trainer;
  const auto visit = [&](const ProtobufField& field) -> Status {
    if (field.id != kPieces && field.id != kTrainer && field.id != kNormalizer) return {};
    REPRISE_CHECK(check_wire(field, Wire::kBytes, name, "a part of the model"));
    if (field.id == kPieces) return read_piece(field.bytes, name, data);
    if (field.id == kTrainer) return read_trainer(field.bytes, name, trainer);
    return read_normalizer(field.bytes, name, data);
  };
  REPRISE_CHECK(for_each_field(bytes, name, visit));
  if (data.tokens.empty()) {
    return fail(ErrorCode::kBadCount, "{}: no pieces; is it a SentencePiece model?", name);
  }
  REPRISE_CHECK(apply_trainer(trainer, name, data));
  add_special_tokens(data);
  REPRISE_CHECK(finish_tokenizer(data, name));
  return data;
}

}  // namespace reprise
