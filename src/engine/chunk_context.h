// What the chunks of a store are read after.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/prompt.h"
#include "text/tokenizer.h"

namespace reprise {

/// Tokens that stand before a chunk while it is read, and of whose KV nothing is kept.
class ChunkContext {
 public:
  /// lead: LibraryOptions::store_lead.
  ChunkContext(const Tokenizer& tokenizer, const PromptBuilder& prompts, std::string_view lead);

  const std::vector<int32_t>& tokens() const { return tokens_; }
  /// Differs between contexts.
  std::string version() const;

 private:
  std::vector<int32_t> tokens_;
};

}  // namespace reprise
