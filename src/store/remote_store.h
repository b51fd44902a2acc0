// Chunks that several machines share through a Redis server. See docs/store.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "store/chunk_format.h"
#include "store/redis.h"

namespace reprise {

struct RemoteOptions {
  std::chrono::milliseconds timeout{2000};       ///< for one chunk, connecting included
  std::chrono::milliseconds retry_after{30000};  ///< a server that failed is left alone so long
};

/// What goes wrong with the server or with what it holds makes a chunk one that is not there, and
/// is said once (take_warning). Used by one thread.
class RemoteStore {
 public:
  /// Connects when it is first used. kInvalidArgument for an address that is none.
  static Result<RemoteStore> open(std::string_view address, const RemoteOptions& options = {});

  /// A chunk of this identity and these tokens, every byte checked. Nothing when it is not there.
  std::optional<EncodedRecord> fetch(const ChunkIdentity& identity, const ChunkTokens& tokens);
  /// Whether a chunk is not there, in a form that serves as well as this one.
  bool lacks(const ChunkHeader& header);
  void share(const EncodedRecord& record);

  /// What went wrong since it was last asked, in one line; empty: nothing.
  std::string take_warning() { return std::exchange(warning_, {}); }

 private:
  using Deadline = RedisConnection::Deadline;

  RemoteStore(RedisAddress address, const RemoteOptions& options)
      : address_(std::move(address)), options_(options) {}
  /// Whether the server may be asked now: then until when.
  std::optional<Deadline> begin() const;
  Status connect(Deadline deadline);
  Result<std::optional<EncodedRecord>> fetch_by(Deadline deadline, const ChunkIdentity& identity,
                                                const ChunkTokens& tokens);
  Status ask_for_blocks(Deadline deadline, const ChunkHeader& header);
  Result<std::optional<std::vector<std::byte>>> take_block(Deadline deadline,
                                                           const ChunkRecord& record,
                                                           uint32_t layer);
  Result<bool> has_as_good(Deadline deadline, const ChunkHeader& header);
  Status share_by(Deadline deadline, const EncodedRecord& record);
  Status set(Deadline deadline, const std::string& key, std::span<const std::byte> value);
  void forget(Deadline deadline, const ChunkKey& key);
  void failed(const Error& error);

  RedisAddress address_;
  RemoteOptions options_;
  std::optional<RedisConnection> connection_;
  Deadline closed_until_{};
  std::string warning_;
};

}  // namespace reprise
