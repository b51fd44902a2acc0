// Documents whose keys and values are kept in a store, and prompts that use them in any order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/engine.h"

namespace reprise {

/// What LibraryOptions::store_codec may be.
inline constexpr std::string_view kStoreCodecs = "none|zstd|q8_0|q8_0+zstd";

struct LibraryOptions {
  std::string store = {};
  uint64_t store_size = uint64_t{20} << 30;
  uint64_t store_memory = 0;
  uint32_t chunk_tokens = 512;
  std::string store_lead = "passage";
  std::string store_codec = "none";
  std::string store_remote = {};
  uint32_t store_timeout = 2000;
  std::string store_load = "always";
};

template <class Visitor>
void visit_options(LibraryOptions& o, Visitor&& visit) {
  visit(OptionSpec{"store", "folder that keeps the KV of documents", "dir"}, o.store);
  visit(OptionSpec{"store-size", "limit of the store; what was used least recently goes first",
                   "bytes", 1, 0x1p50},
        o.store_size);
  visit(OptionSpec{"store-memory",
                   "with --device cuda: page-locked memory in which chunks stay once they were "
                   "read; 0 reads files every time",
                   "bytes", 0, 0x1p50},
        o.store_memory);
  visit(OptionSpec{"chunk-tokens", "most tokens of a chunk that a document is cut into", "tokens",
                   16, 65536},
        o.chunk_tokens);
  visit(OptionSpec{"store-lead",
                   "what chunks are read after: a passage, so that their KV is nearer to that of a "
                   "document behind others; none is the model's first token alone",
                   "", 0, 0, "passage|none"},
        o.store_lead);
  visit(OptionSpec{"store-codec",
                   "how the KV of chunks that are added is kept: zstd loses nothing, q8_0 rounds",
                   "", 0, 0, kStoreCodecs},
        o.store_codec);
  visit(OptionSpec{"store-remote",
                   "Redis server through which machines share chunks: "
                   "redis://[[user]:password@]host[:port][/database] or unix:///path",
                   "url"},
        o.store_remote);
  visit(OptionSpec{"store-timeout", "what takes the server longer for a chunk is computed instead",
                   "ms", 1, 3600000},
        o.store_timeout);
  visit(OptionSpec{"store-load",
                   "auto: chunks are computed where reading them turns out to take longer, so "
                   "that answers depend on speed",
                   "", 0, 0, "always|auto"},
        o.store_load);
}

/// As for EngineOptions.
Status validate(const LibraryOptions& options);

/// Names of the fusions that Library::fuse() knows.
std::vector<std::string> list_fusions();

/// A chunk that search() found.
struct Passage {
  std::string document;
  uint32_t part = 0;  ///< of the document, from 0
  std::vector<int32_t> tokens;
  std::string text;
  double score = 0;  ///< BM25; higher is better
};

/// A prompt in parts. The chunks are looked up in the store; the others are computed.
struct PartedPrompt {
  std::vector<int32_t> head;                 ///< what comes before the documents
  std::vector<std::vector<int32_t>> chunks;  ///< in any order
  std::vector<int32_t> question;             ///< what comes behind them; not empty

  /// The prompt as a whole.
  std::vector<int32_t> tokens() const;
};

/// Rows are of one layer. Times in milliseconds.
struct FusionReport {
  uint64_t chunks = 0, missing_chunks = 0, damaged_chunks = 0;
  uint64_t loaded_chunks = 0;   ///< in whole or in part; the prefix cache may hold others
  uint64_t rounded_chunks = 0;  ///< of those loaded, kept in q8_0
  uint64_t fetched_chunks = 0;  ///< of those found, from the shared store
  uint64_t slow_chunks = 0;     ///< of those found, computed, as store_load=auto allows
  uint64_t prompt_tokens = 0;
  uint64_t reused_rows = 0;      ///< exact KV that the prefix cache held
  uint64_t loaded_rows = 0;      ///< from the store
  uint64_t recomputed_rows = 0;  ///< of those, computed again
  double mean_position = 0;      ///< of those, as part of the prompt
  uint64_t computed_rows = 0;    ///< others
  uint64_t loaded_bytes = 0;
  double look_up_ms = 0, wait_ms = 0, place_ms = 0, select_ms = 0;
  double reading_ms = 0, computing_ms = 0;  ///< of slow_chunks, as was expected of either
  double total_ms = 0;  ///< all of it; the time to the first token has Answer's ttft_ms on top
};

/// Uses an engine, which must outlive it, from the same thread; on a CPU or on GPUs.
class Library {
 public:
  /// Makes the folder when create is set; kFileNotFound otherwise. kInvalidArgument where none is
  /// named, kUnsupported where a GPU computes in float, or store_memory is given on a CPU.
  static Result<Library> open(Engine& engine, const LibraryOptions& options, bool create);
  Library(Library&&) noexcept;
  ~Library();

  /// Tokens of a document's chunks, cut between paragraphs or lines where there are any.
  std::vector<std::vector<int32_t>> cut(std::string_view text) const;
  /// Computes the KV of a chunk and keeps it; false when it was there already. kEmptyPrompt,
  /// kContextExceeded where no prompt has room for it, kOutOfMemory, kInvalidArgument for a token
  /// outside the vocabulary and in a callback of a request; those of the store.
  Result<bool> add(std::string_view document, uint32_t part, std::span<const int32_t> tokens);
  /// Chunks that made room for those that were added here, as the store's size is bounded.
  uint64_t evicted() const;
  /// Chunks that have words of the query, best first. What turns out damaged is dropped, and
  /// take_warning() names it.
  Result<std::vector<Passage>> search(std::string_view query, size_t count);

  /// A conversation's prompt around chunks that stand at the beginning of its last message.
  Result<PartedPrompt> chat_prompt(std::span<const Message> messages,
                                   std::vector<std::vector<int32_t>> chunks) const;
  /// Makes the session hold the prompt and the logits behind it: a request with prompt.tokens()
  /// then answers at once, under the session's policy. One that reads less than everything, or
  /// watches the last rows of a prompt, has those rows computed again first. fusion:
  /// "a3:ratio=0.15", "cacheblend", "pie", ...; see docs/fusion.md. What cannot be read from the
  /// store is computed. Where reading or computing fails, the session is left with what the prefix
  /// cache had of the prompt.
  /// kInvalidArgument, also in a callback of a request; kUnknownOption, kEmptyPrompt without a
  /// question, kContextExceeded, kOutOfMemory where the whole prompt's KV has no room in memory,
  /// whatever the policy; kCancelled; kUnsupported for a3 where every layer's window hides some of
  /// the prompt.
  Result<FusionReport> fuse(Session& session, const PartedPrompt& prompt, std::string_view fusion,
                            const ProgressFn& progress = {});

  /// What went wrong with the shared store or the index, and of which documents chunks were
  /// damaged, since this was last asked, in one line; empty: nothing. Answers are right all the
  /// same: what cannot be read is computed, but search() finds it only when it was added again.
  std::string take_warning();

  struct Impl;

 private:
  explicit Library(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
