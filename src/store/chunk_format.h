// How one chunk's KV lies in a segment of the store. See docs/store.md.
#pragma once

#include <xxhash.h>

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/kv_page.h"
#include "kv/session_file.h"
#include "reprise/error.h"
#include "store/block_codec.h"

namespace reprise {

static_assert(std::endian::native == std::endian::little, "chunk records are little-endian");

/// Everything but tokens that must agree before stored KV may be used.
struct ChunkIdentity {
  KvIdentity kv;
  kernels::KvType type = kernels::KvType::kBF16;  ///< of stored values: bf16 or f32
  uint32_t n_layer = 0, n_kv_head = 0, head_dim = 0;

  bool operator==(const ChunkIdentity&) const = default;
  uint64_t hash() const;
  /// Of one token's keys, or values, in one layer.
  size_t row_bytes() const;
};

/// A chunk and what it was read after: tokens of whose KV nothing is stored, but which the chunk
/// saw.
struct ChunkTokens {
  std::span<const int32_t> context, tokens;
};

/// Finds a chunk; believed only after identity and tokens were compared.
struct ChunkKey {
  uint64_t low = 0, high = 0;
  auto operator<=>(const ChunkKey&) const = default;
};
ChunkKey chunk_key(const ChunkIdentity& identity, const ChunkTokens& tokens);

/// Where a chunk's text came from.
struct ChunkSource {
  std::string document;
  uint32_t part = 0;  ///< of the document, from 0
  std::string text;
};

inline constexpr std::array<char, 8> kChunkMagic = {'\x89', 'R',  'K',    'C',
                                                    '\r',   '\n', '\x1a', '\n'};
inline constexpr uint32_t kChunkVersion = 1;
inline constexpr uint64_t kRecordAlignment = 4096;

/// As it lies at the start of a record.
struct ChunkHeader {
  std::array<char, 8> magic = kChunkMagic;
  uint32_t version = kChunkVersion;
  uint16_t kv_type = 0;
  uint16_t codec = 0;  // not part of the key: a chunk is found in whatever form it is kept
  uint64_t model = 0, tokenizer = 0, numerics = 0;
  uint32_t n_layer = 0, n_kv_head = 0, head_dim = 0, part = 0;
  uint32_t context_tokens = 0, tokens = 0, document_bytes = 0, text_bytes = 0;
  uint64_t record_bytes = 0;
  uint64_t key_low = 0, key_high = 0;
  uint64_t checksum = 0;  // xxh3 of everything before it
};
static_assert(sizeof(ChunkHeader) == 104 && std::is_trivially_copyable_v<ChunkHeader>);

/// Sizes that follow from a header.
struct RecordLayout {
  uint64_t about_bytes = 0;    ///< tokens, source, what is said of blocks, and their own checksum
  uint64_t blocks_offset = 0;  ///< of layer 0's block; the others follow, side by side
  uint64_t block_bytes = 0;    ///< decoded: K [tokens, n_kv_head, head_dim], then V
};
/// kCorrupt when the numbers of a header cannot be those of a record.
Result<RecordLayout> record_layout(const ChunkHeader& header);

/// A layer's keys and values as they are stored.
struct StoredBlock {
  uint64_t offset = 0, bytes = 0;  // in the record
  uint64_t checksum = 0;           // of the stored bytes
};

/// What a record says of its blocks.
struct ChunkRecord {
  ChunkHeader header;
  RecordLayout layout;
  BlockCodec codec;
  std::vector<int32_t> context, tokens;
  ChunkSource source;
  std::vector<StoredBlock> blocks;  // [n_layer]

  ChunkIdentity identity() const;
  ChunkKey key() const { return {header.key_low, header.key_high}; }
  /// Whether it is the chunk of this identity and these tokens.
  bool is(const ChunkIdentity& identity, const ChunkTokens& ids) const;
};

/// Of a layer's block as it is stored, in pieces of any sizes.
class BlockChecksum {
 public:
  BlockChecksum(const ChunkHeader& header, uint32_t layer);
  void add(std::span<const std::byte> piece);
  uint64_t value() const;

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};
uint64_t block_checksum(const ChunkHeader& header, uint32_t layer,
                        std::span<const std::byte> stored);

/// A record as it is written: head, every layer's block, then zeros up to header.record_bytes.
struct EncodedRecord {
  ChunkHeader header;
  ChunkSource source;
  std::vector<std::byte> head;
  std::vector<std::vector<std::byte>> blocks;  // [n_layer]

  std::vector<std::span<const std::byte>> parts() const;
};
/// blocks: [n_layer][block], decoded. kInvalidArgument when they have another size, or values that
/// the codec cannot hold.
Result<EncodedRecord> encode_record(const ChunkIdentity& identity, const ChunkTokens& tokens,
                                    const ChunkSource& source, std::span<const std::byte> blocks,
                                    BlockCodec codec);
/// Reads bytes at an offset from the start of a record.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  virtual Status read(uint64_t offset, std::span<std::byte> out) const = 0;
};
/// Everything but the blocks. room: bytes there are; nothing is allocated beyond that. kCorrupt.
Result<ChunkRecord> decode_record(const RecordReader& reader, uint64_t room);

}  // namespace reprise
