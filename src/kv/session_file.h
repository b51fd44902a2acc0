// A conversation's KV on disk: saved and restored instead of being read again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/sequence_kv.h"
#include "reprise/error.h"
#include "reprise/progress.h"

namespace reprise {

/// Everything that must agree before stored KV may be used.
struct KvIdentity {
  uint64_t model = 0;      ///< Model::fingerprint
  uint64_t tokenizer = 0;  ///< Tokenizer::fingerprint
  uint64_t numerics = 0;   ///< rope table, phase numerics, key rotation, policy that shaped the KV
  bool operator==(const KvIdentity&) const = default;
};

struct SavedSession {
  std::vector<int32_t> tokens;  ///< tokens whose KV is stored
  std::string state;            ///< opaque to this layer: conversation, policy state
};

/// Writes to a temporary file beside path, syncs and renames it; on any error path is untouched
/// (unless only the folder's sync after the rename failed). Every block carries an xxh3 checksum;
/// unused slots of the last page are written as zeros. saved.tokens has sequence.length() tokens.
/// Errors: kInvalidArgument, kFileUnwritable, kCancelled.
Status save_session(const std::string& path, const KvIdentity& identity, const SavedSession& saved,
                    const SequenceKv& sequence, const ProgressFn& progress = {});

/// SavedSession::state alone, of a file of any identity, whatever became of its tokens and KV.
/// Errors: kFileNotFound, kFileUnreadable, kBadMagic, kUnsupportedVersion, kTruncated, kCorrupt.
Result<std::string> load_session_state(const std::string& path);

/// The type of the KV in a file of a model (Model::fingerprint); nothing where there is none.
std::optional<kernels::KvType> session_kv_type(const std::string& path, uint64_t model);

/// Restores into sequence (empty before; left empty on error). Where memory has no room for all of
/// it and there is a disk to page from, it rests, in part on disk. Errors: kFileNotFound,
/// kFileUnreadable, kBadMagic, kUnsupportedVersion, kSessionMismatch (says which part differs),
/// kTruncated, kCorrupt, kOutOfMemory, kCancelled. The file is hostile input: nothing is allocated
/// beyond its length. Tokens may be any numbers: the caller compares them with its vocabulary.
Result<SavedSession> load_session(const std::string& path, const KvIdentity& identity,
                                  SequenceKv& sequence, const ProgressFn& progress = {});

}  // namespace reprise
