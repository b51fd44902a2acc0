// The public API: load a model once, open sessions on it, generate.
//
// An Engine and its sessions are used from one thread at a time; callbacks run on that thread and
// do not throw. Those of requests may start requests and destroy sessions, their own too, but not
// wait for answers: generate(), Library::add() and Library::fuse() are errors there, and step()
// does nothing. Those that report the progress of saving, restoring and fusing do none of this.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/error.h"
#include "reprise/kv_tiers.h"
#include "reprise/options.h"
#include "reprise/progress.h"
#include "reprise/request.h"

namespace reprise {

struct ModelInfo {
  std::string path, name, architecture, quantization, kv_type;
  uint32_t n_layer = 0, hidden = 0, n_head = 0, n_kv_head = 0, head_dim = 0, ffn = 0, vocab = 0;
  uint32_t trained_context = 0;  ///< tokens
  uint32_t context = 0;          ///< limit in force
  uint64_t weight_bytes = 0;     ///< read by one decode step
  uint64_t kv_bytes_per_token = 0;
  uint64_t kv_limit_bytes = 0;
  double load_ms = 0;
};

struct PolicyInfo {
  std::string name, summary, source;  ///< source: the paper
  /// Stands left of "+" and changes what the policy on its right does; default_inner otherwise.
  bool decorator = false;
  std::string default_inner;
  std::vector<OptionInfo> options;
};
/// Every registered attention policy.
std::vector<PolicyInfo> list_policies();

/// A live conversation: its tokens and their KV. Destroy before the Engine, unless callbacks of
/// requests own it; a request that runs on it ends with it, without a word.
class Session {
 public:
  ~Session();
  /// Reads what is new in request.prompt and answers. KV of the longest common prefix with what the
  /// session (or the prefix cache) holds is reused. What is refused changes nothing; after another
  /// error the session holds what was read of the prompt.
  Result<Answer> generate(const Request& request);
  /// Tokens whose KV is held.
  std::span<const int32_t> tokens() const;
  /// A copy that shares KV pages.
  std::unique_ptr<Session> fork() const;
  /// Drops tokens from the end. kUnsupported when the policy has given up KV that this would need;
  /// kInvalidArgument beyond the end, or while a request is running.
  Status truncate(size_t length);
  /// Writes tokens and KV to a file, with text of the caller's own; see docs/kv.md. kUnsupported
  /// for KV that Library::fuse loaded, or of policies that keep what a file does not hold;
  /// kFileUnwritable, kCancelled: what lay there before stays.
  Status save(const std::string& path, std::string_view note,
              const ProgressFn& progress = {}) const;
  /// The note in a file that any session saved, with any model and settings, whatever became of the
  /// KV beside it. kFileNotFound, kFileUnreadable, kBadMagic, kUnsupportedVersion, kTruncated,
  /// kCorrupt.
  static Result<std::string> read_note(const std::string& path);
  /// Replaces this session's content; returns the note. On error the session is unchanged.
  /// kSessionMismatch where model, device, precision, context, KV type (EngineOptions::kv_type_of)
  /// or policy, as it is spelled, differ; kInvalidArgument while a request is running; kCancelled;
  /// those of read_note().
  Result<std::string> restore(const std::string& path, const ProgressFn& progress = {});

  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

class Engine {
 public:
  /// Errors say what of the options or of the model's files is wrong; kOutOfMemory,
  /// kDeviceUnavailable, kCancelled.
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options,
                                              const ProgressFn& progress = {});
  ~Engine();

  const ModelInfo& info() const;
  /// Where the KV of all sessions and prefixes lies.
  KvTiers kv() const;
  /// policy: "full", "streaming:sink=4,window=1024", "dense:first=2+quest:budget=512", ...;
  /// kUnknownPolicy suggests the nearest name, kUnknownOption likewise; kInvalidArgument for values
  /// out of range; kUnsupported for policies that cannot be combined, or not on this device.
  Result<std::unique_ptr<Session>> open(std::string_view policy = "full");

  /// Starts a request on a session of this engine; step() then computes every started request
  /// together. The answer is delivered to on_done. The session must not be used until then.
  /// kInvalidArgument where it already has a request, or is another engine's; and what generate()
  /// refuses.
  using DoneFn = std::function<void(Result<Answer>)>;
  Status submit(Session& session, Request request, DoneFn on_done);
  /// One forward pass over all started requests; false when there is nothing left to do, and in
  /// callbacks.
  bool step();

  /// Token ids of plain text: special tokens are not parsed, BOS is added if the model wants it.
  std::vector<int32_t> tokenize(std::string_view text, bool parse_special = false,
                                bool add_special = true) const;
  std::string detokenize(std::span<const int32_t> tokens, bool keep_special = false) const;
  /// The prompt of a conversation by the model's chat template, ready for the answer.
  Result<std::vector<int32_t>> chat_prompt(std::span<const Message> messages) const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
