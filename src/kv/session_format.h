// The session file: header, tokens, state, page map, blocks of pages, footer. See docs/kv.md.
#pragma once

#include <xxhash.h>

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "kv/file_io.h"
#include "kv/page_map.h"
#include "kv/sequence_kv.h"
#include "kv/session_file.h"

namespace reprise {

static_assert(std::endian::native == std::endian::little, "session files are little-endian");

inline constexpr std::array<char, 8> kSessionMagic = {'\x89', 'R',  'K',    'V',
                                                      '\r',   '\n', '\x1a', '\n'};
inline constexpr std::array<char, 8> kSessionEnd = {'R', 'K', 'V', 'E', 'N', 'D', '\r', '\n'};
inline constexpr uint32_t kSessionVersion = 1;
inline constexpr uint32_t kPageFormat = 1;  // changes with the order of values inside a page
inline constexpr uint64_t kMaxPagesPerBlock = 1024;

/// As it lies in the file.
struct SessionHeader {
  std::array<char, 8> magic = kSessionMagic;
  uint32_t version = kSessionVersion;
  uint32_t page_format = kPageFormat;
  uint64_t model = 0, tokenizer = 0, numerics = 0;
  uint32_t kv_type = 0, n_kv_head = 0, head_dim = 0, page_tokens = kPageTokens;
  uint64_t page_bytes = 0;
  uint64_t n_layer = 0;
  uint64_t token_count = 0;
  uint64_t state_bytes = 0;
  uint64_t page_count = 0;  // pages present, over all layers
  uint64_t pages_per_block = 0;
  uint64_t file_bytes = 0;
  uint64_t checksum = 0;  // xxh3 of everything before it
};
static_assert(sizeof(SessionHeader) == 120 && std::is_trivially_copyable_v<SessionHeader>);

uint64_t header_checksum(const SessionHeader& header);

/// As it lies at the end of the file.
struct SessionFooter {
  std::array<char, 8> end = kSessionEnd;
  uint64_t checksum = 0;  // xxh3 of the header's and all sections' checksums in order
};
static_assert(sizeof(SessionFooter) == 16 && std::is_trivially_copyable_v<SessionFooter>);

/// Checksums of the sections of one file, in order.
class SectionChecksums {
 public:
  explicit SectionChecksums(uint64_t header_checksum);
  /// xxh3 of the next section, seeded with its index.
  uint64_t next(Parts section);
  uint64_t footer() const;

 private:
  struct FreeState {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::vector<uint64_t> all_;  // the header's, then one per section
  std::unique_ptr<XXH3_state_t, FreeState> state_;
};

/// The size of a file with these counts and pages; empty when it overflows.
std::optional<uint64_t> session_file_bytes(const SessionHeader& header, const PageMap& map);

/// The header of a sequence's file; checksum included.
SessionHeader make_header(const KvIdentity& identity, const SavedSession& saved,
                          const SequenceKv& sequence, const PageMap& map);

/// Calls fn(layer, blocks) with the present pages of each layer, at most pages_per_block at a time:
/// the order of the file's blocks.
Status for_each_block(
    const PageMap& map, uint64_t pages_per_block,
    const std::function<Status(uint32_t layer, std::span<const uint32_t> blocks)>& fn);

/// The pages of one block of the file: where they lie, or a copy where the host cannot reach them
/// there.
class BlockPages {
 public:
  /// tokens: of the sequence; unused slots of its last page are zero in the file, since they may
  /// hold tokens of another conversation.
  BlockPages(const SequenceKv& sequence, size_t tokens) : sequence_(sequence), tokens_(tokens) {}

  /// What is to be written to the file; valid until the next call.
  Result<std::vector<iovec>> fetch(uint32_t layer, std::span<const uint32_t> blocks);
  /// Where the file is to be read to; then store() brings it to the pages.
  std::vector<iovec> room(uint32_t layer, std::span<const uint32_t> blocks);
  Status store(uint32_t layer, std::span<const uint32_t> blocks);

 private:
  /// Whether the last of the blocks has unused slots.
  bool partial(std::span<const uint32_t> blocks) const;
  bool in_memory(uint32_t layer, std::span<const uint32_t> blocks) const;
  void append(uint32_t layer, std::span<const uint32_t> blocks, std::vector<iovec>& parts) const;

  const SequenceKv& sequence_;
  size_t tokens_;
  std::vector<std::byte> copy_;
};

template <class T>
iovec bytes_of(T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {&value, sizeof(T)};
}

}  // namespace reprise
