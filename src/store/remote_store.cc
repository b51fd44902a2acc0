#include "store/remote_store.h"

#include <algorithm>
#include <cstring>

#include "base/try.h"

namespace reprise {
namespace {

constexpr std::string_view kLifeSeconds = "2592000";  // 30 days since it was last used
constexpr size_t kMostHeadBytes = size_t{64} << 20;   // tokens and text
constexpr size_t kShortReply = 4096;

// In braces is what a cluster of servers places all keys of a chunk by.
std::string head_key(const ChunkKey& key) {
  return fmt::format("reprise:{}:{{{:016x}{:016x}}}", kChunkVersion, key.high, key.low);
}

// With the header's checksum: blocks of another form of the chunk have other keys, so that nobody
// reads a mixture while one replaces the other.
std::string block_key(const ChunkHeader& header, uint32_t layer) {
  return fmt::format("{}:{:016x}:{}", head_key({header.key_low, header.key_high}), header.checksum,
                     layer);
}

class MemoryReader : public RecordReader {
 public:
  explicit MemoryReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  Status read(uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
      return fail(ErrorCode::kTruncated, "the record ends at byte {}", bytes_.size());
    }
    std::ranges::copy(bytes_.subspan(offset, out.size()), out.begin());
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
};

tl::unexpected<Error> wrong(std::string_view what) { return fail(ErrorCode::kCorrupt, "{}", what); }

std::span<const std::byte> raw(const std::string& text) { return std::as_bytes(std::span(text)); }

// What a head says, if it is that of a chunk of this identity and these tokens. So no size that it
// names is larger than what the chunk must have.
Result<ChunkRecord> decode_head(std::span<const std::byte> head, const ChunkIdentity& identity,
                                const ChunkTokens& tokens) {
  ChunkHeader header;
  if (head.size() < sizeof header) return wrong("a record is cut off");
  std::memcpy(&header, head.data(), sizeof header);
  const auto layout = record_layout(header);
  if (!layout || layout->blocks_offset != head.size()) return wrong("a record has another length");
  auto record = decode_record(MemoryReader(head), header.record_bytes);
  if (!record) return wrong(record.error().message);
  if (!record->is(identity, tokens)) return wrong("a record is another chunk's");
  return record;
}

}  // namespace

Result<RemoteStore> RemoteStore::open(std::string_view address, const RemoteOptions& options) {
  REPRISE_TRY(RedisAddress parsed, parse_redis_address(address));
  return RemoteStore(std::move(parsed), options);
}

std::optional<RemoteStore::Deadline> RemoteStore::begin() const {
  const auto now = std::chrono::steady_clock::now();
  if (now < closed_until_) return std::nullopt;
  return now + options_.timeout;
}

Status RemoteStore::connect(Deadline deadline) {
  if (connection_ && connection_->alive()) return {};
  connection_.reset();
  REPRISE_TRY(auto connection, RedisConnection::open(address_, deadline));
  connection_.emplace(std::move(connection));
  return {};
}

void RemoteStore::failed(const Error& error) {
  connection_.reset();  // answers may still be under way
  const bool bad_data = error.code == ErrorCode::kCorrupt;
  if (!bad_data) closed_until_ = std::chrono::steady_clock::now() + options_.retry_after;
  if (!warning_.empty()) return;
  warning_ = fmt::format(
      "the shared store at {} {} ({}); {}", address_.name(),
      bad_data ? "holds a damaged chunk" : "cannot be used", error.message,
      bad_data ? "it is dropped there and computed again" : "going on with the local store alone");
}

std::optional<EncodedRecord> RemoteStore::fetch(const ChunkIdentity& identity,
                                                const ChunkTokens& tokens) {
  const auto deadline = begin();
  if (!deadline) return std::nullopt;
  auto fetched = fetch_by(*deadline, identity, tokens);
  if (fetched) return std::move(*fetched);
  failed(fetched.error());
  if (fetched.error().code == ErrorCode::kCorrupt) forget(*deadline, chunk_key(identity, tokens));
  return std::nullopt;
}

Result<std::optional<EncodedRecord>> RemoteStore::fetch_by(Deadline deadline,
                                                           const ChunkIdentity& identity,
                                                           const ChunkTokens& tokens) {
  REPRISE_CHECK(connect(deadline));
  const ChunkKey key = chunk_key(identity, tokens);
  REPRISE_CHECK(connection_->send({"GET", head_key(key)}, deadline));
  REPRISE_TRY(const auto head, connection_->receive(kMostHeadBytes, deadline));
  if (!head) return std::nullopt;
  REPRISE_TRY(const ChunkRecord record, decode_head(raw(*head), identity, tokens));
  REPRISE_CHECK(ask_for_blocks(deadline, record.header));
  EncodedRecord encoded = {
      record.header, record.source, {raw(*head).begin(), raw(*head).end()}, {}};
  for (uint32_t layer = 0; layer < record.header.n_layer; ++layer) {
    REPRISE_TRY(auto block, take_block(deadline, record, layer));
    if (!block) {  // the server made room
      connection_.reset();
      forget(deadline, key);
      return std::nullopt;
    }
    encoded.blocks.push_back(std::move(*block));
  }
  REPRISE_TRY(const auto life, connection_->receive(kShortReply, deadline));
  return encoded;
}

// All at once; they are answered in order.
Status RemoteStore::ask_for_blocks(Deadline deadline, const ChunkHeader& header) {
  for (uint32_t layer = 0; layer < header.n_layer; ++layer) {
    const std::string key = block_key(header, layer);
    REPRISE_CHECK(connection_->send({"GET", key}, deadline));
    REPRISE_CHECK(connection_->send({"EXPIRE", key, kLifeSeconds}, deadline));
  }
  const std::string head = head_key({header.key_low, header.key_high});
  return connection_->send({"EXPIRE", head, kLifeSeconds}, deadline);
}

Result<std::optional<std::vector<std::byte>>> RemoteStore::take_block(Deadline deadline,
                                                                      const ChunkRecord& record,
                                                                      uint32_t layer) {
  const StoredBlock& stored = record.blocks[layer];
  REPRISE_TRY(const auto value, connection_->receive(stored.bytes, deadline));
  REPRISE_TRY(const auto life, connection_->receive(kShortReply, deadline));
  if (!value) return std::nullopt;
  const auto bytes = raw(*value);
  if (bytes.size() != stored.bytes ||
      block_checksum(record.header, layer, bytes) != stored.checksum) {
    return wrong(fmt::format("layer {} is not what was stored", layer));
  }
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

// So that it can be shared again.
void RemoteStore::forget(Deadline deadline, const ChunkKey& key) {
  if (!connect(deadline)) return;
  const Status sent = connection_->send({"DEL", head_key(key)}, deadline);
  if (!sent || !connection_->receive(kShortReply, deadline)) connection_.reset();
}

bool RemoteStore::lacks(const ChunkHeader& header) {
  const auto deadline = begin();
  if (!deadline) return false;
  const auto there = has_as_good(*deadline, header);
  if (!there) failed(there.error());
  return there && !*there;
}

Result<bool> RemoteStore::has_as_good(Deadline deadline, const ChunkHeader& header) {
  REPRISE_CHECK(connect(deadline));
  const std::string key = head_key({header.key_low, header.key_high});
  const std::string last = std::to_string(sizeof header - 1);
  REPRISE_CHECK(connection_->send({"GETRANGE", key, "0", last}, deadline));
  REPRISE_TRY(const auto found, connection_->receive(sizeof header, deadline));
  ChunkHeader there;
  if (!found || found->size() != sizeof there) return false;
  std::memcpy(&there, found->data(), sizeof there);
  const auto codec = codec_from_bits(there.codec), ours = codec_from_bits(header.codec);
  return codec && ours && codec->serves(*ours);
}

void RemoteStore::share(const EncodedRecord& record) {
  const auto deadline = begin();
  if (!deadline) return;
  const Status shared = share_by(*deadline, record);
  if (!shared) failed(shared.error());
}

// Blocks first: a chunk is there when its head is.
Status RemoteStore::share_by(Deadline deadline, const EncodedRecord& record) {
  REPRISE_CHECK(connect(deadline));
  const ChunkHeader& header = record.header;
  const auto layers = static_cast<uint32_t>(record.blocks.size());
  for (uint32_t layer = 0; layer < layers; ++layer) {
    REPRISE_CHECK(set(deadline, block_key(header, layer), record.blocks[layer]));
  }
  for (uint32_t layer = 0; layer < layers; ++layer) {
    REPRISE_TRY(const auto stored, connection_->receive(kShortReply, deadline));
  }
  REPRISE_CHECK(set(deadline, head_key({header.key_low, header.key_high}), record.head));
  REPRISE_TRY(const auto stored, connection_->receive(kShortReply, deadline));
  return {};
}

Status RemoteStore::set(Deadline deadline, const std::string& key,
                        std::span<const std::byte> value) {
  const std::string_view text(reinterpret_cast<const char*>(value.data()), value.size());
  return connection_->send({"SET", key, text, "EX", kLifeSeconds}, deadline);
}

}  // namespace reprise
