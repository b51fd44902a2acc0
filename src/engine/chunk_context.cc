#include "engine/chunk_context.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

namespace reprise {
namespace {

// Is like a document, and about nothing that one is likely to be asked for. A chunk that begins a
// prompt draws attention to its first tokens that it would not get behind other documents.
constexpr std::string_view kPassage =
    "The town lies on a river between two low hills. Its market is held on Saturdays, when farmers "
    "bring vegetables, bread and cheese, and by noon most of the stalls are empty again. A small "
    "museum beside the bridge shows old tools, maps and letters. In winter the ferry does not run, "
    "and people walk across to the station, which is ten minutes away.\n\n";

// Of a passage, its end: a tokenizer of bytes makes many of it.
constexpr size_t kMostTokens = 128;

// The model's first token, or what stands between documents, so that a chunk's own first token does
// not become the one that attention falls back to.
int32_t first_token(const Tokenizer& tokenizer) {
  const TokenizerData& data = tokenizer.data();
  if (data.add_bos && data.bos) return *data.bos;
  if (const auto separator = tokenizer.find("<|endoftext|>")) return *separator;
  if (data.bos) return *data.bos;
  return data.eos ? *data.eos : 0;
}

// The one that conversations begin with; templates may have more there that differs by the day.
int32_t first_of_chats(const Tokenizer& tokenizer, const PromptBuilder& prompts) {
  const Message message = {"user", "?"};
  const auto ends = prompts.build_around({&message, 1});
  const bool begins = ends && !ends->first.empty() && tokenizer.is_special(ends->first.front());
  return begins ? ends->first.front() : first_token(tokenizer);
}

}  // namespace

ChunkContext::ChunkContext(const Tokenizer& tokenizer, const PromptBuilder& prompts,
                           std::string_view lead) {
  if (lead == "none") {
    tokens_ = {first_token(tokenizer)};
    return;
  }
  const auto passage = tokenizer.encode(kPassage, {.add_special = false});
  tokens_ = {first_of_chats(tokenizer, prompts)};
  const size_t count = std::min(passage.size(), kMostTokens - 1);
  tokens_.insert(tokens_.end(), passage.end() - static_cast<std::ptrdiff_t>(count), passage.end());
}

// The numbers change whenever chunks are read in another way.
std::string ChunkContext::version() const {
  if (tokens_.size() == 1) return "isolated 1";
  const auto hash = XXH3_64bits(tokens_.data(), tokens_.size() * sizeof(tokens_[0]));
  return fmt::format("behind 1 {:016x}", hash);
}

}  // namespace reprise
