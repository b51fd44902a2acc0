// What the readers of the different tokenizer formats share.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "formats/tokenizer_data.h"
#include "reprise/error.h"

namespace reprise {

/// The byte that a byte-fallback piece "<0xHH>" stands for.
std::optional<uint8_t> byte_of_piece(std::string_view piece);

/// Id of the token with this text, by linear search.
std::optional<int32_t> find_token(const TokenizerData& data, std::string_view text);

/// Makes control tokens of those that end an answer by their name: some converters do not.
void mark_end_tokens(TokenizerData& data);

/// Lists the control and user-defined tokens of the vocabulary as added tokens.
void add_special_tokens(TokenizerData& data);

/// Checks what text/ relies on: sizes agree, ids are in the vocabulary, scores are finite, byte
/// pieces are "<0xHH>"; adds the control tokens that end an answer by their name to end_of_turn.
/// kBadCount, kBadValue.
Status finish_tokenizer(TokenizerData& data, std::string_view name);

}  // namespace reprise
