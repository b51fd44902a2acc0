#include "engine/chunk_context.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace reprise {
namespace {

// Of chunks that are read after a token alone. Changes whenever chunks are read in another way.
constexpr std::string_view kIsolated = "isolated 1";

// Is like a document, and about nothing that one is likely to be asked for. A chunk that begins a
// prompt draws attention to its first tokens that it would not get behind other documents.
constexpr std::string_view kPassage =
    "The town lies on a river between two low hills. Its market is held on Saturdays, when farmers "
    "bring vegetables, bread and cheese, and by noon most of the stalls are empty again. A small "
    "museum beside the bridge shows old tools, maps and letters. In winter the ferry does not run, "
    "and people walk across to the station, which is ten minutes away.\n\n";

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
  return ends && !ends->first.empty() ? ends->first.front() : first_token(tokenizer);
}

}  // namespace

ChunkContext::ChunkContext(const Tokenizer& tokenizer, const PromptBuilder& prompts,
                           std::string_view lead, size_t most)
    : first_{first_token(tokenizer)}, most_(most), version_(kIsolated) {
  if (lead == "none") return;
  passage_ = {first_of_chats(tokenizer, prompts)};
  const auto text = tokenizer.encode(kPassage, {.add_special = false});
  passage_.insert(passage_.end(), text.begin(), text.end());
  const size_t bytes = passage_.size() * sizeof(passage_[0]);
  version_ = fmt::format("behind {:016x}", XXH3_64bits(passage_.data(), bytes));
}

std::span<const int32_t> ChunkContext::of(size_t tokens) const {
  const bool fits = !passage_.empty() && passage_.size() + tokens <= most_;
  return fits ? passage_ : first_;
}

}  // namespace reprise
