// The way of a text through a tokenizer's parts.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/subword_model.h"
#include "text/token_texts.h"
#include "text/tokenizer.h"
#include "text/word_cache.h"

namespace reprise {

/// Everything encoding needs, built once for each tokenizer.
struct TokenizerParts {
  AddedTokens added;             ///< matched in the text as it is
  AddedTokens added_normalized;  ///< matched after normalisation
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<SubwordModel> model;
  bool cut_before_metaspace;
};

/// One encode() call.
class Encoder {
 public:
  /// text and options must outlive the encoder.
  Encoder(const TokenizerParts& parts, std::string_view text, const EncodeOptions& options,
          std::vector<int32_t>& ids);
  /// Appends the ids of the whole text.
  void run();

 private:
  void encode_valid(std::string_view run);
  void encode_invalid(std::string_view bytes);
  /// literal: ranges of the part that special tokens may not touch.
  void encode_between(std::string_view part, const TextPosition& position,
                      std::vector<TextRange> literal);
  /// What options.literal has of a part of the text, in whole characters; counted from its start.
  std::vector<TextRange> literal_in(std::string_view part) const;
  /// The part normalised; literal becomes where its ranges are then.
  std::string_view normalize(std::string_view part, const TextPosition& position,
                             std::vector<TextRange>& literal);
  void encode_piece(std::string_view piece);
  void encode_word(std::string_view word);
  size_t offset_of(std::string_view part) const {
    return static_cast<size_t>(part.data() - text_.data());
  }

  const TokenizerParts& parts_;
  std::string_view text_;
  const EncodeOptions& options_;
  std::vector<int32_t>& ids_;
  SplitContext context_;
  SubwordScratch scratch_;
  WordCache cache_;
  bool after_special_ = true;
};

}  // namespace reprise
