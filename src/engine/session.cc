#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/try.h"
#include "engine/engine_impl.h"

namespace reprise {
namespace {

std::string_view bytes_of(const uint64_t& number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

struct SessionState {
  std::string_view note;  // as the next, into what it was unpacked from
  std::string_view policy;
  uint64_t prefilled = 0;
};

// State of a session file: length of the note, note, tokens that were prefilled, state of the
// policy.
std::string pack_state(const SessionState& state) {
  const uint64_t length = state.note.size();
  std::string packed;
  for (const std::string_view part :
       {bytes_of(length), state.note, bytes_of(state.prefilled), state.policy})
    packed += part;
  return packed;
}

Result<SessionState> unpack_state(const std::string& path, std::string_view state) {
  uint64_t length = 0;
  if (state.size() >= sizeof length) std::memcpy(&length, state.data(), sizeof length);
  if (state.size() < sizeof length || length > state.size() - sizeof length)
    return fail(ErrorCode::kCorrupt, "{}: {} bytes of state are too few", path, state.size());
  state.remove_prefix(sizeof length);
  SessionState unpacked{state.substr(0, length), state.substr(length)};
  std::string_view& rest = unpacked.policy;  // without a number: of an earlier version
  if (rest.size() >= sizeof unpacked.prefilled) {
    std::memcpy(&unpacked.prefilled, rest.data(), sizeof unpacked.prefilled);
    rest.remove_prefix(sizeof unpacked.prefilled);
  }
  return unpacked;
}

}  // namespace

KvIdentity Session::Impl::identity() const {
  std::string numerics = fmt::format("{};{};ctx={};state=2",  // of the layout of SessionState
                                     numerics_of(engine.options), policy_spec, engine.info.context);
  const EngineOptions& options = engine.options;
  if (options.device != "cpu") numerics += fmt::format(";{}:{}", options.device, options.kv_type);
  return {engine.model->fingerprint(), engine.tokenizer->fingerprint(),
          XXH3_64bits(numerics.data(), numerics.size())};
}

Status Session::Impl::check_opened_on(const Engine::Impl& other) const {
  if (&engine == &other) return {};
  return fail(ErrorCode::kInvalidArgument, "the session was opened on another engine");
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() {
  Scheduler& scheduler = impl_->engine.scheduler;
  scheduler.cancel(impl_->sequence);
  scheduler.keep(std::move(impl_));
}

Result<Answer> Session::generate(const Request& request) {
  if (impl_->engine.scheduler.stepping()) {
    return fail(ErrorCode::kInvalidArgument,
                "a callback cannot wait for an answer; start the request with Engine::submit");
  }
  Scheduler& scheduler = impl_->engine.scheduler;  // a callback may end this session
  std::optional<Result<Answer>> result;
  auto request_lives = std::make_shared<bool>();
  const std::weak_ptr<bool> lives = request_lives;
  REPRISE_CHECK(scheduler.submit(impl_->sequence, request,
                                 [&result, held = std::move(request_lives)](Result<Answer> answer) {
                                   result = std::move(answer);
                                 }));
  while (!result && !lives.expired()) scheduler.step();
  if (!result) return fail(ErrorCode::kCancelled, "the session ended before its answer");
  return std::move(*result);
}

std::span<const int32_t> Session::tokens() const { return impl_->sequence.tokens; }

std::unique_ptr<Session> Session::fork() const {
  const Sequence& from = impl_->sequence;
  auto copy = std::make_unique<Impl>(impl_->engine, impl_->policy_spec, from.policy->fork());
  copy->sequence.kv = from.kv;
  copy->sequence.kv.rest();
  copy->sequence.tokens = from.tokens;
  copy->sequence.prefilled = from.prefilled;
  copy->sequence.restored = from.restored;
  copy->sequence.exact = from.exact;
  return std::make_unique<Session>(std::move(copy));
}

Status Session::truncate(size_t length) {
  REPRISE_CHECK(impl_->sequence.check_idle());
  if (length > impl_->sequence.tokens.size()) {
    return fail(ErrorCode::kInvalidArgument, "cannot truncate {} tokens to {}",
                impl_->sequence.tokens.size(), length);
  }
  if (impl_->sequence.truncate(length)) return {};
  return fail(ErrorCode::kUnsupported,
              "policy {} has given up keys that going on from token {} would need",
              impl_->policy_spec, length);
}

Status Session::save(const std::string& path, std::string_view note,
                     const ProgressFn& progress) const {
  const Sequence& sequence = impl_->sequence;
  if (!sequence.policy->rebuilds()) {
    return fail(ErrorCode::kUnsupported,
                "policy {} keeps what a session file does not hold; save with another policy",
                impl_->policy_spec);
  }
  if (sequence.fused()) {
    return fail(ErrorCode::kUnsupported,
                "a session file holds exact KV, and this session's was loaded from a store from "
                "token {} on; truncate to that, or read the prompt without the store",
                sequence.exact);
  }
  const std::string policy = sequence.policy->save_state();
  return save_session(path, impl_->identity(),
                      {sequence.tokens, pack_state({note, policy, sequence.prefilled})},
                      sequence.kv, progress);
}

Result<std::string> Session::read_note(const std::string& path) {
  REPRISE_TRY(const std::string packed, load_session_state(path));
  REPRISE_TRY(const SessionState state, unpack_state(path, packed));
  return std::string(state.note);
}

Result<std::string> Session::restore(const std::string& path, const ProgressFn& progress) {
  REPRISE_CHECK(impl_->sequence.check_idle());
  Engine::Impl& engine = impl_->engine;
  const KvIdentity identity = impl_->identity();
  SequenceKv kv(engine.kv);
  REPRISE_TRY(SavedSession saved, load_session(path, identity, kv, progress));
  const auto vocab = static_cast<int32_t>(engine.model->config().vocab);
  for (const int32_t token : saved.tokens) {
    if (token < 0 || token >= vocab) {
      return fail(ErrorCode::kCorrupt, "{}: token {} is outside the vocabulary of {}", path, token,
                  vocab);
    }
  }
  REPRISE_TRY(const SessionState state, unpack_state(path, saved.state));
  Sequence& sequence = impl_->sequence;
  // Into the session's own policy: a copy would find taken what sequences share and it holds.
  auto before = sequence.policy->fork();
  sequence.policy->truncate(0);
  const Status kept =
      sequence.policy->restore_state(state.policy, static_cast<int32_t>(saved.tokens.size()));
  if (!kept) {
    sequence.policy = std::move(before);
    return fail(kept.error().code, "{}: {}", path, kept.error().message);
  }
  sequence.kv = std::move(kv);
  sequence.kv.rest();
  sequence.tokens = std::move(saved.tokens);
  sequence.logits.clear();
  sequence.prefilled = std::min<size_t>(state.prefilled, sequence.tokens.size());
  sequence.restored = !sequence.tokens.empty();
  sequence.exact = Sequence::kAll;
  return std::string(state.note);
}

}  // namespace reprise
