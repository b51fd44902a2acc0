#include "store/chunk_format.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/try.h"

namespace reprise {
namespace {

ChunkHeader make_header(const ChunkIdentity& identity) {
  ChunkHeader header;
  header.kv_type = static_cast<uint16_t>(identity.type);
  header.model = identity.kv.model;
  header.tokenizer = identity.kv.tokenizer;
  header.numerics = identity.kv.numerics;
  header.n_layer = identity.n_layer;
  header.n_kv_head = identity.n_kv_head;
  header.head_dim = identity.head_dim;
  return header;
}

uint64_t header_checksum(const ChunkHeader& header) {
  return XXH3_64bits(&header, offsetof(ChunkHeader, checksum));
}

uint64_t about_checksum(const ChunkHeader& header, std::span<const std::byte> about) {
  return XXH3_64bits_withSeed(about.data(), about.size() - sizeof(uint64_t), header.checksum);
}

template <class T>
void append(std::vector<std::byte>& out, std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <class T>
void take(std::span<const std::byte>& from, std::span<T> values) {
  std::ranges::copy(from.first(values.size_bytes()), std::as_writable_bytes(values).begin());
  from = from.subspan(values.size_bytes());
}

}  // namespace

uint64_t ChunkIdentity::hash() const {
  const ChunkHeader header = make_header(*this);
  return XXH3_64bits(&header, sizeof header);
}

size_t ChunkIdentity::row_bytes() const {
  const size_t value = type == kernels::KvType::kF32 ? sizeof(float) : sizeof(uint16_t);
  return size_t{n_kv_head} * head_dim * value;
}

ChunkKey chunk_key(const ChunkIdentity& identity, const ChunkTokens& tokens) {
  ChunkHeader header = make_header(identity);
  header.context_tokens = static_cast<uint32_t>(tokens.context.size());
  header.tokens = static_cast<uint32_t>(tokens.tokens.size());
  std::vector<std::byte> bytes;
  append(bytes, std::span<const ChunkHeader>(&header, 1));
  append(bytes, tokens.context);
  append(bytes, tokens.tokens);
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

ChunkIdentity ChunkRecord::identity() const {
  return {{header.model, header.tokenizer, header.numerics},
          static_cast<kernels::KvType>(header.kv_type),
          header.n_layer,
          header.n_kv_head,
          header.head_dim};
}

bool ChunkRecord::is(const ChunkIdentity& identity, const ChunkTokens& ids) const {
  return this->identity() == identity && std::ranges::equal(context, ids.context) &&
         std::ranges::equal(tokens, ids.tokens);
}

Result<RecordLayout> record_layout(const ChunkHeader& header) {
  const auto type = static_cast<kernels::KvType>(header.kv_type);
  if (type != kernels::KvType::kBF16 && type != kernels::KvType::kF32) {
    return fail(ErrorCode::kCorrupt, "a chunk of KV type {}", header.kv_type);
  }
  REPRISE_TRY(const BlockCodec codec, codec_from_bits(header.codec));
  const uint64_t value = type == kernels::KvType::kF32 ? sizeof(float) : sizeof(uint16_t);
  const CheckedSize ids = (CheckedSize(header.context_tokens) + header.tokens) * sizeof(int32_t);
  const CheckedSize numbers = CheckedSize(header.n_layer) * (codec.zstd ? 2 : 1) + 1;
  const CheckedSize about =
      ids + header.document_bytes + header.text_bytes + numbers * sizeof(uint64_t);
  const CheckedSize offset = (about + sizeof(ChunkHeader)).align_up(kRecordAlignment);
  const CheckedSize block =
      CheckedSize(header.tokens) * 2 * header.n_kv_head * header.head_dim * value;
  // Twice as much is more than any codec makes of a block.
  if (!offset.valid() || !(block * 2 * header.n_layer + kRecordAlignment).valid()) {
    return fail(ErrorCode::kCorrupt, "the size of a chunk overflows");
  }
  return RecordLayout{*about.value(), *offset.value(), *block.value()};
}

BlockChecksum::BlockChecksum(const ChunkHeader& header, uint32_t layer)
    : state_(XXH3_createState(), &XXH3_freeState) {
  XXH3_64bits_reset_withSeed(state_.get(), header.checksum + layer);
}

void BlockChecksum::add(std::span<const std::byte> piece) {
  XXH3_64bits_update(state_.get(), piece.data(), piece.size());
}

uint64_t BlockChecksum::value() const { return XXH3_64bits_digest(state_.get()); }

uint64_t block_checksum(const ChunkHeader& header, uint32_t layer,
                        std::span<const std::byte> stored) {
  BlockChecksum checksum(header, layer);
  checksum.add(stored);
  return checksum.value();
}

std::vector<std::span<const std::byte>> EncodedRecord::parts() const {
  std::vector<std::span<const std::byte>> parts = {head};
  parts.insert(parts.end(), blocks.begin(), blocks.end());
  return parts;
}

Result<EncodedRecord> encode_record(const ChunkIdentity& identity, const ChunkTokens& tokens,
                                    const ChunkSource& source, std::span<const std::byte> blocks,
                                    BlockCodec codec) {
  EncodedRecord record = {make_header(identity), source, {}, {}};
  ChunkHeader& header = record.header;
  const ChunkKey key = chunk_key(identity, tokens);
  header.codec = codec_bits(codec);
  header.key_low = key.low;
  header.key_high = key.high;
  header.part = source.part;
  header.context_tokens = static_cast<uint32_t>(tokens.context.size());
  header.tokens = static_cast<uint32_t>(tokens.tokens.size());
  header.document_bytes = static_cast<uint32_t>(source.document.size());
  header.text_bytes = static_cast<uint32_t>(source.text.size());
  REPRISE_TRY(const RecordLayout layout, record_layout(header));
  if (tokens.tokens.empty() || blocks.size() != layout.block_bytes * header.n_layer) {
    return fail(ErrorCode::kInvalidArgument, "{} tokens do not have {} bytes of KV", header.tokens,
                blocks.size());
  }
  uint64_t end = layout.blocks_offset;
  for (uint32_t layer = 0; layer < header.n_layer; ++layer) {
    const auto raw = blocks.subspan(layer * layout.block_bytes, layout.block_bytes);
    REPRISE_TRY(record.blocks.emplace_back(), encode_block(codec, identity.type, raw));
    end += record.blocks.back().size();
  }
  header.record_bytes = *CheckedSize(end).align_up(kRecordAlignment).value();
  header.checksum = header_checksum(header);
  std::vector<std::byte>& out = record.head;
  append(out, std::span<const ChunkHeader>(&header, 1));
  append(out, tokens.context);
  append(out, tokens.tokens);
  append(out, std::span<const char>(source.document));
  append(out, std::span<const char>(source.text));
  for (uint32_t layer = 0; layer < header.n_layer; ++layer) {
    const uint64_t sum = block_checksum(header, layer, record.blocks[layer]);
    append(out, std::span<const uint64_t>(&sum, 1));
  }
  for (uint32_t layer = 0; codec.zstd && layer < header.n_layer; ++layer) {
    const uint64_t bytes = record.blocks[layer].size();
    append(out, std::span<const uint64_t>(&bytes, 1));
  }
  const size_t about = out.size() + sizeof(uint64_t) - sizeof header;
  out.resize(layout.blocks_offset);
  const auto whole = std::span<const std::byte>(out).subspan(sizeof header, about);
  const uint64_t sum = about_checksum(header, whole);
  std::memcpy(out.data() + sizeof header + about - sizeof sum, &sum, sizeof sum);
  return record;
}

namespace {

// Where every block lies, from what follows the source; false when a block's size is impossible.
bool place_blocks(std::span<const std::byte> about, ChunkRecord& record) {
  const ChunkHeader& header = record.header;
  const auto type = static_cast<kernels::KvType>(header.kv_type);
  const uint64_t most = most_encoded_bytes(record.codec, type, record.layout.block_bytes);
  record.blocks.resize(header.n_layer);
  for (StoredBlock& block : record.blocks) take(about, std::span(&block.checksum, 1));
  CheckedSize end = record.layout.blocks_offset;
  for (StoredBlock& block : record.blocks) {
    block.bytes = most;
    if (record.codec.zstd) take(about, std::span(&block.bytes, 1));
    if (block.bytes > most) return false;
    block.offset = end.value().value_or(0);
    end = end + block.bytes;
  }
  return end.align_up(kRecordAlignment).value() == header.record_bytes;
}

}  // namespace

Result<ChunkRecord> decode_record(const RecordReader& reader, uint64_t room) {
  const auto corrupt = [](std::string_view what) {
    return fail(ErrorCode::kCorrupt, "the record's {}", what);
  };
  ChunkRecord record;
  ChunkHeader& header = record.header;
  if (room < sizeof header) return corrupt("header is cut off");
  REPRISE_CHECK(reader.read(0, std::as_writable_bytes(std::span(&header, 1))));
  if (header.magic != kChunkMagic) return corrupt("magic bytes are not a chunk's");
  if (header.checksum != header_checksum(header)) return corrupt("header has another checksum");
  if (header.version != kChunkVersion) {
    return fail(ErrorCode::kUnsupportedVersion, "a chunk of format {}, this is {}", header.version,
                kChunkVersion);
  }
  REPRISE_TRY(record.layout, record_layout(header));
  REPRISE_TRY(record.codec, codec_from_bits(header.codec));
  if (header.tokens == 0 || header.record_bytes > room ||
      record.layout.blocks_offset > header.record_bytes) {
    return corrupt("length is not what its header says");
  }
  std::vector<std::byte> bytes(record.layout.about_bytes);
  REPRISE_CHECK(reader.read(sizeof header, bytes));
  uint64_t sum;
  std::memcpy(&sum, bytes.data() + bytes.size() - sizeof sum, sizeof sum);
  if (sum != about_checksum(header, bytes)) return corrupt("tokens have another checksum");
  record.context.resize(header.context_tokens);
  record.tokens.resize(header.tokens);
  record.source.document.resize(header.document_bytes);
  record.source.text.resize(header.text_bytes);
  record.source.part = header.part;
  std::span<const std::byte> from = bytes;
  take(from, std::span(record.context));
  take(from, std::span(record.tokens));
  take(from, std::span(record.source.document));
  take(from, std::span(record.source.text));
  if (!place_blocks(from, record)) return corrupt("blocks do not fill it");
  return record;
}

}  // namespace reprise
