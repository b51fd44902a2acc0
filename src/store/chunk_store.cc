#include "store/chunk_store.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "base/try.h"

namespace reprise {
namespace {

// After either, uses are told to other processes, whose evictions go by them.
constexpr size_t kMostUses = 256;
constexpr int64_t kUseSeconds = 10;

// Of a block, checked while a core's cache holds it. One of up to two is read at once: in halves a
// cold disk is slower.
constexpr size_t kPiece = 256 << 10;

int64_t now_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace

bool is_damage(const Error& error) {
  return error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kTruncated ||
         error.code == ErrorCode::kUnsupportedVersion || error.code == ErrorCode::kFileNotFound;
}

Status StoredChunk::read_stored(uint32_t layer, std::span<std::byte> out) const {
  const StoredBlock& block = record_.blocks[layer];
  BlockChecksum checksum(record_.header, layer);
  const size_t bytes = out.size() <= 2 * kPiece ? out.size() : kPiece;
  for (size_t at = 0; at < out.size(); at += bytes) {
    const auto piece = out.subspan(at, std::min(bytes, out.size() - at));
    REPRISE_CHECK(file_.read(block.offset + at, piece));
    checksum.add(piece);
  }
  if (checksum.value() == block.checksum) return {};
  return fail(ErrorCode::kCorrupt, "the KV of layer {} of a chunk of '{}' is damaged", layer,
              record_.source.document);
}

size_t StoredChunk::block_bytes(BlockForm form) const {
  return form_bytes(record_.codec, form, record_.identity().type, record_.layout.block_bytes);
}

Status StoredChunk::read_layer(uint32_t layer, std::span<std::byte> out, BlockForm form) const {
  const BlockCodec codec = record_.codec;
  if (!codec.zstd && (!codec.q8_0 || form == BlockForm::kCodes)) return read_stored(layer, out);
  std::vector<std::byte> stored(record_.blocks[layer].bytes);
  REPRISE_CHECK(read_stored(layer, stored));
  return decode_block(codec, form, record_.identity().type, stored, out);
}

Result<EncodedRecord> StoredChunk::encoded() const {
  EncodedRecord encoded = {record_.header, record_.source, {}, {}};
  encoded.head.resize(record_.layout.blocks_offset);
  REPRISE_CHECK(file_.read(0, encoded.head));
  for (uint32_t layer = 0; layer < record_.header.n_layer; ++layer) {
    auto& block = encoded.blocks.emplace_back(record_.blocks[layer].bytes);
    REPRISE_CHECK(read_stored(layer, block));
  }
  return encoded;
}

Status StoredChunk::check() const {
  std::vector<std::byte> stored;
  for (uint32_t layer = 0; layer < record_.header.n_layer; ++layer) {
    stored.resize(record_.blocks[layer].bytes);
    REPRISE_CHECK(read_stored(layer, stored));
  }
  return {};
}

Result<ChunkStore> ChunkStore::open(const std::string& folder, bool create,
                                    const StoreLimits& limits) {
  std::error_code error;
  const bool made = create && std::filesystem::create_directory(folder, error);
  if (error) {
    return fail(ErrorCode::kFileUnwritable, "cannot make the folder '{}': {}", folder,
                error.message());
  }
  if (made) REPRISE_CHECK(sync_folder(folder + "/.."));
  if (!create) REPRISE_CHECK(check_folder(folder));
  REPRISE_TRY(ChunkIndex index, ChunkIndex::open(folder + "/index.db"));
  ChunkStore store(folder, std::move(index), limits);
  REPRISE_CHECK(store.on_any_disk([&] { return store.prepare(); }));
  if (!store.spare_.given()) store.spare_.keep();
  return store;
}

Status ChunkStore::prepare() {
  REPRISE_TRY(const int64_t version, index_.version());
  if (version < ChunkIndex::kVersion) {
    REPRISE_TRY(const WriterLock lock, WriterLock::take(folder_));
    REPRISE_CHECK(complete_index());
  }
  return index_.make_tables();
}

Status ChunkStore::complete_index() {
  REPRISE_TRY(const int64_t version, index_.version());
  if (version >= ChunkIndex::kVersion) return {};
  REPRISE_CHECK(index_.make_tables());  // SQLite would not wait for others that do
  return version == 0 ? fill_index() : index_.update_texts();
}

Status ChunkStore::check_folder(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return fail(ErrorCode::kFileNotFound, "'{}' is no folder; `reprise store add` makes a store",
                folder);
  }
  if (std::filesystem::exists(folder + "/index.db", error)) return {};
  REPRISE_TRY(const auto segments, Segments(folder).sizes());
  if (!segments.empty()) return {};
  return fail(ErrorCode::kFileNotFound,
              "'{}' is no store: it has neither an index nor segments; `reprise store add` makes "
              "one",
              folder);
}

std::string ChunkStore::take_warning() {
  std::map<std::string, size_t> documents;
  for (const ChunkRow& row : std::exchange(dropped_, {})) ++documents[row.document];
  std::vector<std::string> parts, texts;
  parts.reserve(documents.size());
  for (const auto& [document, chunks] : documents) {
    parts.push_back(
        fmt::format("{} {} of '{}'", chunks, chunks == 1 ? "chunk" : "chunks", document));
  }
  if (std::exchange(mended_, false)) {
    texts.push_back(fmt::format(
        "the index of '{}' was damaged and was made again from the chunks that are there",
        folder_));
  }
  if (!parts.empty()) {
    texts.push_back(
        fmt::format("damaged and dropped from the store: {}; `reprise store add` puts them there "
                    "again",
                    fmt::join(parts, ", ")));
  }
  if (remote_) texts.push_back(remote_->take_warning());
  std::erase(texts, "");
  return fmt::format("{}", fmt::join(texts, "; "));
}

ChunkStore::~ChunkStore() {
  // The order of eviction may suffer, nothing else.
  if (!used_.empty()) static_cast<void>(flush_use());
}

Status ChunkStore::flush_use() {
  const Status status = index_.touch(used_, now_seconds());
  used_.clear();
  return status;
}

Result<std::optional<StoredChunk>> ChunkStore::read(const ChunkRow& row) const {
  auto file = segments_.open(row.place);
  if (!file && is_damage(file.error())) return std::nullopt;
  if (!file) return tl::unexpected<Error>(file.error());
  auto record = decode_record(*file, row.place.bytes);
  if (!record && is_damage(record.error())) return std::nullopt;
  if (!record) return tl::unexpected<Error>(record.error());
  if (record->key() != row.key || record->header.record_bytes != row.place.bytes) {
    return std::nullopt;
  }
  return StoredChunk(row, std::move(*record), std::move(*file));
}

Result<std::optional<StoredChunk>> ChunkStore::find(const ChunkRow& row) {
  return on_any_disk([&] { return find_at(row); });
}

Result<std::optional<StoredChunk>> ChunkStore::find_at(const ChunkRow& row) {
  REPRISE_TRY(auto chunk, read(row));
  if (chunk) return chunk;
  // A collection may have moved it after the row was read.
  REPRISE_TRY(auto again, index_.find(row.key));
  if (!again) return std::nullopt;
  if (again->place != row.place) return find_at(*again);
  REPRISE_CHECK(drop(*again));
  return std::nullopt;
}

Status ChunkStore::drop(const ChunkRow& row) {
  REPRISE_CHECK(index_.erase_there(row));
  note_damage(row);
  return {};
}

void ChunkStore::note_damage(const ChunkRow& row) {
  ++damaged_;
  dropped_.push_back(row);
}

Result<std::optional<StoredChunk>> ChunkStore::find_here(const ChunkIdentity& identity,
                                                         const ChunkTokens& tokens) {
  REPRISE_TRY(const auto row, index_.find(chunk_key(identity, tokens)));
  if (!row) return std::nullopt;
  REPRISE_TRY(auto chunk, find_at(*row));
  if (!chunk || !chunk->record().is(identity, tokens)) return std::nullopt;
  const int64_t now = now_seconds();
  if (used_.empty()) used_since_ = now;
  used_.push_back(chunk->row().id);
  if (used_.size() >= kMostUses || now - used_since_ >= kUseSeconds) {
    static_cast<void>(flush_use());  // where it fails the order of eviction may suffer, no more
  }
  return chunk;
}

Result<std::optional<StoredChunk>> ChunkStore::find(const ChunkIdentity& identity,
                                                    const ChunkTokens& tokens) {
  REPRISE_TRY(auto here, on_any_disk([&] { return find_here(identity, tokens); }));
  if (here || !remote_) return here;
  const auto fetched = remote_->fetch(identity, tokens);
  if (!fetched) return std::nullopt;
  REPRISE_CHECK(mended([&] { return write(*fetched, identity, tokens); }));
  ++fetched_;
  return find_here(identity, tokens);
}

// False when it is there already, in a form that serves.
Result<bool> ChunkStore::write(const EncodedRecord& encoded, const ChunkIdentity& identity,
                               const ChunkTokens& tokens) {
  REPRISE_TRY(const BlockCodec codec, codec_from_bits(encoded.header.codec));
  REPRISE_TRY(const WriterLock lock, WriterLock::take(folder_));
  REPRISE_CHECK(complete_index());
  REPRISE_TRY(const auto there, find_here(identity, tokens));
  if (there && there->record().codec.serves(codec)) return false;
  ChunkRecord record;
  record.header = encoded.header;
  record.source = encoded.source;
  const uint64_t bytes = record.header.record_bytes;
  REPRISE_CHECK(make_room(bytes));
  if (spare_.given() && !spare_.keep()) {
    return fail(ErrorCode::kFileUnwritable,
                "'{}': No space left on device; free room there, or lower the store's size limit",
                folder_);
  }
  REPRISE_TRY(const auto old, index_.find(record.key()));  // that may have moved or dropped it
  REPRISE_TRY(const RecordPlace place, segments_.append(encoded.parts(), bytes, segment_limit()));
  const Status indexed = index_.insert(record, place, now_seconds());
  if (!indexed) {
    segments_.undo(place);
    return tl::unexpected<Error>(indexed.error());
  }
  // What it replaces is not to come back once it is removed.
  if (there && old) static_cast<void>(segments_.erase({&old->place, 1}));
  std::erase_if(dropped_, [&](const ChunkRow& row) { return row.key == record.key(); });
  return true;
}

Result<bool> ChunkStore::add(const ChunkIdentity& identity, const ChunkTokens& tokens,
                             const ChunkSource& source, std::span<const std::byte> blocks,
                             BlockCodec codec) {
  REPRISE_TRY(const EncodedRecord encoded, encode_record(identity, tokens, source, blocks, codec));
  REPRISE_TRY(const bool added, mended([&] { return write(encoded, identity, tokens); }));
  if (remote_ && remote_->lacks(encoded.header)) remote_->share(encoded);
  return added;
}

void ChunkStore::share(const StoredChunk& chunk) {
  if (!remote_ || !remote_->lacks(chunk.record().header)) return;
  const auto encoded = chunk.encoded();
  if (encoded) remote_->share(*encoded);
}

Status ChunkStore::remove(std::span<const ChunkRow> rows) {
  std::vector<RecordPlace> places;  // also of those that a first attempt took out of the index
  return on_any_disk([&]() -> Status {
    REPRISE_TRY(const WriterLock lock, WriterLock::take(folder_));
    REPRISE_CHECK(complete_index());
    std::vector<ChunkRow> current;
    for (const ChunkRow& row : rows) {
      REPRISE_TRY(const auto now, index_.find(row.key));
      // A collection may have moved it, a new index numbered it anew; else it was added since.
      if (!now || (now->id != row.id && now->place != row.place)) continue;
      current.push_back(*now);
      const auto chunk = read(*now);  // the index may be wrong about what lies there
      if (chunk && *chunk) places.push_back(now->place);
    }
    REPRISE_CHECK(index_.erase(current));
    return segments_.erase(places);
  });
}

Result<std::vector<ChunkRow>> ChunkStore::list() {
  return on_any_disk([&] { return index_.all(); });
}

Result<std::vector<ChunkRow>> ChunkStore::search(const ChunkIdentity& identity,
                                                 std::string_view query, size_t count) {
  return on_any_disk([&] { return index_.search(identity.hash(), query, count); });
}

Result<StoreStats> ChunkStore::stats() {
  StoreStats stats;
  REPRISE_TRY(const auto rows, list());
  for (const ChunkRow& row : rows) {
    ++stats.chunks;
    stats.tokens += row.tokens;
    stats.live_bytes += row.place.bytes;
  }
  REPRISE_TRY(const auto sizes, segments_.sizes());
  for (const auto& [segment, bytes] : sizes) stats.disk_bytes += bytes;
  return stats;
}

}  // namespace reprise
