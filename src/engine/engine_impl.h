// What Engine and Session hide.
#pragma once

#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "engine/prompt.h"
#include "engine/scheduler.h"
#include "kv/page_pool.h"
#include "kv/session_file.h"
#include "model/model.h"
#include "reprise/engine.h"
#include "text/tokenizer.h"

namespace reprise {

/// Changes whenever kernels change what KV they compute for the same tokens, or what policies save
/// changes its form.
inline constexpr std::string_view kNumericsVersion = "8";

inline std::string numerics_of(const EngineOptions& options) {
  return fmt::format("{}{}", kNumericsVersion, options.precision == "f32" ? " in f32" : "");
}

struct Engine::Impl {
  Impl(const EngineOptions& how, PagePool kv_pool, std::unique_ptr<ThreadPool> pool,
       std::unique_ptr<Model> loaded, std::unique_ptr<Tokenizer> text, PromptBuilder builder,
       std::unique_ptr<Backend> computes, const SchedulerLimits& limits)
      : options(how),
        threads(std::move(pool)),
        model(std::move(loaded)),
        tokenizer(std::move(text)),
        prompts(std::move(builder)),
        kv(std::move(kv_pool)),
        backend(std::move(computes)),
        scheduler(model->config(), *tokenizer, kv, *backend, limits) {}

  EngineOptions options;
  ModelInfo info;
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  PromptBuilder prompts;
  PagePool kv;
  std::unique_ptr<Backend> backend;
  Scheduler scheduler;
};

struct Session::Impl {
  Impl(Engine::Impl& owner, std::string spec, std::unique_ptr<Policy> policy)
      : engine(owner), policy_spec(std::move(spec)), sequence(owner.kv, std::move(policy)) {}

  KvIdentity identity() const;
  /// kInvalidArgument unless it was opened on that engine.
  Status check_opened_on(const Engine::Impl& other) const;

  Engine::Impl& engine;
  std::string policy_spec;
  Sequence sequence;
};

}  // namespace reprise
