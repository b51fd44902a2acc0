// What the chunks of a store are read after.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/prompt.h"
#include "text/tokenizer.h"

namespace reprise {

/// Tokens that stand before a chunk while it is read, and of whose KV nothing is kept.
class ChunkContext {
 public:
  /// lead: LibraryOptions::store_lead. most: tokens that a context and its chunk may have.
  ChunkContext(const Tokenizer& tokenizer, const PromptBuilder& prompts, std::string_view lead,
               size_t most);

  /// Of a chunk with that many tokens: a token alone where it leaves no room for a passage.
  std::span<const int32_t> of(size_t tokens) const;
  /// Differs between contexts.
  const std::string& version() const { return version_; }

 private:
  std::vector<int32_t> first_;    // [1]
  std::vector<int32_t> passage_;  // with a token before it; empty: none
  size_t most_;
  std::string version_;
};

}  // namespace reprise
