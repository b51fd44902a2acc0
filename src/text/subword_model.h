// The part of a tokenizer that turns one piece of text into token ids.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "formats/tokenizer_data.h"
#include "reprise/error.h"

namespace reprise {

/// Working memory that one thread reuses from piece to piece.
struct SubwordScratch {
  struct Symbol {
    int32_t id;
    uint32_t prev, next;
  };
  struct Candidate {
    uint32_t rank, at;  // of the left symbol
    int32_t left, right;
  };
  struct Best {
    double score;
    int32_t id;
    uint32_t bytes;
  };
  std::vector<int32_t> ids;  // [symbols] before and after merging
  std::vector<Symbol> symbols;
  std::vector<Candidate> candidates;
  std::vector<Best> best;
  uint64_t steps = 0;  ///< candidates looked at so far; what linear time is tested by
};

class SubwordModel {
 public:
  virtual ~SubwordModel() = default;
  /// Appends the ids of a piece: valid UTF-8, or bytes for which has_bytes() is true.
  virtual void encode(std::string_view piece, SubwordScratch& scratch,
                      std::vector<int32_t>& ids) const = 0;
  /// True when each of these bytes, which are no text, has a token of its own.
  virtual bool has_bytes(std::string_view bytes) const = 0;
};

/// Ids of the tokens that stand for single bytes when a character has no token.
class ByteFallback {
 public:
  /// With use = false there are none.
  ByteFallback(const TokenizerData& data, bool use);

  bool has(std::string_view bytes) const;
  /// Appends a character's tokens, or the unknown token (if there is one) when a byte has none.
  void append(std::string_view character, std::vector<int32_t>& ids) const;

 private:
  std::array<int32_t, 256> ids_;
  int32_t unknown_;
};

/// True for tokens that text may become: not control, unknown, byte and unused ones.
bool is_text_token(TokenKind kind);

/// Merges by rank. byte_level: tokens are written in GPT-2's printable bytes.
std::unique_ptr<SubwordModel> make_ranked_bpe(const TokenizerData& data, bool byte_level);
/// Merges by the score of what they make (SentencePiece).
std::unique_ptr<SubwordModel> make_score_bpe(const TokenizerData& data);
/// The likeliest segmentation.
std::unique_ptr<SubwordModel> make_unigram(const TokenizerData& data);

/// Where a text may be cut for free: before a U+2581 that follows something else, when no token
/// spans such a place.
bool can_cut_before_metaspace(const TokenizerData& data);

}  // namespace reprise
