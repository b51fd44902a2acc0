#include <xxhash.h>

#include "base/try.h"
#include "engine/engine_impl.h"

namespace reprise {
namespace {

// Changes whenever kernels change what KV they compute for the same tokens.
constexpr std::string_view kNumericsVersion = "2";

}  // namespace

KvIdentity Session::Impl::identity() const {
  std::string numerics =
      fmt::format("{};{};ctx={}", kNumericsVersion, policy_spec, engine.info.context);
  const EngineOptions& options = engine.options;
  if (options.device != "cpu") numerics += fmt::format(";{}:{}", options.device, options.kv_type);
  return {engine.model->fingerprint(), engine.tokenizer->fingerprint(),
          XXH3_64bits(numerics.data(), numerics.size())};
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() { impl_->engine.scheduler.cancel(impl_->sequence); }

Result<Answer> Session::generate(const Request& request) {
  std::optional<Result<Answer>> result;
  REPRISE_CHECK(impl_->engine.scheduler.submit(
      impl_->sequence, request, [&](Result<Answer> answer) { result = std::move(answer); }));
  while (!result) impl_->engine.scheduler.step();
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
  return std::make_unique<Session>(std::move(copy));
}

Status Session::truncate(size_t length) {
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
  return save_session(path, impl_->identity(), {sequence.tokens, std::string(note)}, sequence.kv,
                      progress);
}

Result<std::string> Session::restore(const std::string& path, const ProgressFn& progress) {
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
  Sequence& sequence = impl_->sequence;
  sequence.kv = std::move(kv);
  sequence.kv.rest();
  sequence.policy->truncate(0);
  sequence.tokens = std::move(saved.tokens);
  sequence.prefilled = 0;  // the file does not say which tokens were prefilled
  return std::move(saved.state);
}

}  // namespace reprise
