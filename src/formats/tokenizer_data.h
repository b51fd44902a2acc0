// A tokenizer as stored in a model, whatever the format: GGUF metadata, tokenizer.json or
// tokenizer.model. Parsed and validated here, given meaning in text/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/gguf.h"
#include "reprise/error.h"

namespace reprise {

enum class TokenKind : uint8_t { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };
enum class TokenizerModel : uint8_t {
  kByteBpe,  ///< ranked merges; over GPT-2's printable bytes in GGUF, and in tokenizer.json
             ///< when a ByteLevel step says so (else over characters, maybe byte_fallback)
  kSentencePieceBpe,  ///< Llama 2 style: U+2581 for space, merges by score, byte fallback
  kUnigram,           ///< SentencePiece unigram: Viterbi over piece scores, byte fallback
};

/// A token that is matched in text before (or instead of) the model.
struct AddedToken {
  std::string text;
  int32_t id = 0;
  bool special = false;  ///< matched only when the caller asks for special tokens
  bool lstrip = false, rstrip = false, single_word = false, normalized = false;
};

/// One step of a normalizer or pre-tokenizer or decoder, in order. Unknown kinds are refused with
/// kUnsupportedTokenizer by text/, not here.
struct TokenizerStep {
  std::string kind;     ///< tokenizer.json "type", e.g. "Split", "ByteLevel", "Digits", "Replace"
  std::string pattern;  ///< regular expression or literal, if the kind has one
  bool pattern_is_regex = false;
  std::string content;   ///< replacement, prefix, ... if the kind has one
  std::string behavior;  ///< Split: Isolated, Removed, MergedWithPrevious, ...
  bool invert = false;
  bool add_prefix_space = false;   ///< ByteLevel, Metaspace ("always"/"first" -> prepend_scheme)
  bool use_regex = true;           ///< ByteLevel
  bool individual_digits = false;  ///< Digits
  std::string prepend_scheme;      ///< Metaspace: "always", "first", "never"
  bool split = true;               ///< Metaspace
  uint32_t start = 0, stop = 0;    ///< Strip
};

struct TokenizerData {
  TokenizerModel model = TokenizerModel::kByteBpe;
  std::vector<std::string> tokens;                          ///< [vocab], as stored
  std::vector<TokenKind> kinds;                             ///< [vocab]
  std::vector<float> scores;                                ///< [vocab] or empty
  std::vector<std::pair<std::string, std::string>> merges;  ///< in rank order, kByteBpe
  std::vector<AddedToken> added;
  std::string gguf_pre;  ///< tokenizer.ggml.pre ("smollm", "llama-bpe", "qwen2", ...); else empty
  std::vector<TokenizerStep> normalizers, pre_tokenizers, decoders;  ///< tokenizer.json only
  bool byte_fallback = false, ignore_merges = false, fuse_unknown = false;
  bool add_space_prefix = true;           ///< SentencePiece models
  bool remove_extra_whitespaces = false;  ///< SentencePiece normalizer
  bool add_bos = false, add_eos = false;  ///< what encode() adds when asked for special tokens
  std::optional<int32_t> bos, eos, unknown, pad;
  std::vector<int32_t> end_of_turn;  ///< further ids that end an answer (eot, eom, ...)
  std::string chat_template;         ///< Jinja source, or empty
};

/// kTokenizerMissing when the file has no tokenizer.ggml.* keys.
Result<TokenizerData> read_gguf_tokenizer(const GgufFile& file);
/// From a model folder: tokenizer.json (preferred) or tokenizer.model, with tokenizer_config.json,
/// generation_config.json (else config.json) and chat_template.jinja (else .json) where present.
/// kTokenizerMissing when neither is.
Result<TokenizerData> read_folder_tokenizer(const std::string& folder);
/// tokenizer.json text alone (fuzzed).
Result<TokenizerData> parse_tokenizer_json(std::string_view text, std::string_view name);
/// tokenizer.model (a SentencePiece protobuf) alone.
Result<TokenizerData> parse_sentencepiece(std::string_view bytes, std::string_view name);

}  // namespace reprise
