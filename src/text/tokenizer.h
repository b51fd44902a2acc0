// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_data.h"
#include "reprise/error.h"

namespace reprise {

/// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
};

struct EncodeOptions {
  bool add_special = true;     ///< add BOS/EOS as the model's tokenizer is configured to
  bool parse_special = false;  ///< match special tokens in the text; never for user text
  /// Parts of the text in which parse_special does not hold, e.g. what users wrote inside a
  /// rendered chat template. Ordered, not empty, without overlaps; special tokens that touch one
  /// are not matched.
  std::span<const TextRange> literal{};
};

class Tokenizer {
 public:
  /// kUnsupportedTokenizer names the component that is not known; kBadValue when one is broken.
  static Result<std::unique_ptr<Tokenizer>> create(TokenizerData data);
  ~Tokenizer();

  /// Linear time in text. Invalid UTF-8 is kept byte by byte where the model has byte tokens and
  /// becomes U+FFFD otherwise. Safe to call from several threads.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Bytes of the tokens; special tokens are skipped unless keep_special. Ids outside the
  /// vocabulary stand for nothing.
  std::string decode(std::span<const int32_t> tokens, bool keep_special = false) const;
  /// The bytes one token stands for when it is not the first of a text.
  std::string_view token_bytes(int32_t token) const;
  /// The bytes it stands for when it is the first: some models put a space before every text.
  std::string_view first_token_bytes(int32_t token) const;

  size_t vocab_size() const;
  bool is_special(int32_t token) const;
  bool is_end(int32_t token) const;  ///< EOS or another end-of-turn id
  /// Id of a token by its text as stored in the model (e.g. "<|im_end|>").
  std::optional<int32_t> find(std::string_view token) const;
  const TokenizerData& data() const;
  /// Hash of everything that decides ids; part of the identity of stored KV.
  uint64_t fingerprint() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Turns a stream of tokens into text that never splits a UTF-8 sequence.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool keep_special = false);
  /// Text that became complete with this token, valid UTF-8; may be empty. Bytes that cannot become
  /// a character are replaced by U+FFFD.
  std::string push(int32_t token);
  /// What is left at the end; an incomplete sequence becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool keep_special_;
  bool first_ = true;
  std::string pending_;
};

}  // namespace reprise
