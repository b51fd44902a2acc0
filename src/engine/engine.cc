#include "reprise/engine.h"

#include <algorithm>
#include <chrono>
#include <future>

#include "base/system.h"
#include "base/try.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/engine_impl.h"
#include "engine/model_path.h"
#include "engine/prompt_format.h"
#include "kv/session_file.h"
#include "methods/registry.h"

namespace reprise {
namespace {

// name is one of the option's choices, which were checked.
kernels::KvType kv_type(std::string_view name) {
  kernels::KvType found = kernels::KvType::kBF16;
  for (const kernels::KvType type : kernels::kKvTypes) {
    if (kernels::kv_type_name(type) == name) found = type;
  }
  return found;
}

// Where every product is one of floats, KV is float too.
Result<EngineOptions> completed(EngineOptions options) {
  REPRISE_CHECK(validate(options));
  if (options.precision != "f32" || options.kv_type == "f32") return options;
  if (options.kv_type != kAutoKvType) {
    return fail(ErrorCode::kInvalidArgument,
                "--precision f32 keeps keys and values in f32; leave out --kv-type {}",
                options.kv_type);
  }
  options.kv_type = "f32";
  return options;
}

// The type of keys and values where none is named.
kernels::KvType own_kv_type(const EngineOptions& options, const Model& model) {
  if (options.device == "cuda") return kernels::KvType::kBF16;
  const auto saved = session_kv_type(options.kv_type_of, model.fingerprint());
  if (saved) return *saved;
  return kernels::fastest_kv_type(model.config().head_dim, !options.kv_disk.empty());
}

struct Computing {
  PagePool kv;
  std::unique_ptr<Backend> backend;
};

Result<Computing> start_backend(const EngineOptions& options, Model& model, ThreadPool& threads,
                                const ProgressFn& progress) {
  if (options.device == "cuda") {
    REPRISE_TRY(CudaEngine engine, cuda_engine(model, threads, options, progress));
    return Computing{std::move(engine.kv), std::move(engine.backend)};
  }
  if (options.kv_type == "fp8") {
    return fail(ErrorCode::kUnsupported,
                "--kv-type fp8 is there with --device cuda only; choose "
                "bf16, bf12, f16, f32 or q8_0");
  }
  const ModelConfig& config = model.config();
  const kernels::KvLayout layout = {kv_type(options.kv_type), config.n_kv_head, config.head_dim};
  if (!kernels::suits(layout.type, config.head_dim)) {
    return fail(ErrorCode::kUnsupported,
                "--kv-type {} needs heads of a multiple of 32 dimensions, not {}; choose bf16, "
                "f16 or f32",
                options.kv_type, config.head_dim);
  }
  const uint64_t kv_bytes =
      options.kv_memory > 0 ? options.kv_memory : available_memory_bytes() / 2;
  const bool disk = !options.kv_disk.empty();
  REPRISE_TRY(auto kv, PagePool::create(layout, config.n_layer, kv_bytes, disk));
  return Computing{std::move(kv), cpu_backend(model, threads, prefetch_mode(options.kv_prefetch))};
}

ModelInfo describe(const Model& model, const std::string& path, const PagePool& kv,
                   uint32_t context) {
  const ModelConfig& config = model.config();
  ModelInfo info;
  info.path = path;
  info.name = config.name;
  info.architecture = config.architecture;
  info.quantization = model.quantization();
  info.n_layer = config.n_layer;
  info.hidden = config.hidden;
  info.n_head = config.n_head;
  info.n_kv_head = config.n_kv_head;
  info.head_dim = config.head_dim;
  info.ffn = config.ffn;
  info.vocab = config.vocab;
  info.trained_context = config.context;
  info.context = context;
  info.weight_bytes = model.weight_bytes();
  info.kv_bytes_per_token = kv.page_bytes() / kPageTokens * config.n_layer;
  info.kv_limit_bytes = kv.limit_bytes();
  return info;
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd:
      return "end";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kContext:
      return "context";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

std::vector<PolicyInfo> list_policies() {
  std::vector<PolicyInfo> policies;
  for (const PolicyEntry& entry : policy_entries()) {
    policies.push_back({std::string(entry.name), std::string(entry.summary),
                        std::string(entry.source), entry.decorator,
                        std::string(entry.default_inner), entry.options});
  }
  return policies;
}

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& given,
                                             const ProgressFn& progress) {
  const auto start = std::chrono::steady_clock::now();
  REPRISE_TRY(EngineOptions options, completed(given));
  if (options.device == "cuda") REPRISE_CHECK(find_cuda_devices(options.tp));
  REPRISE_TRY(const std::string path, resolve_model(options.model));
  auto threads = std::make_unique<ThreadPool>(static_cast<int>(options.threads));
  const bool expand = options.precision == "f32";
  // Beside the weights where there are threads, which with both policies need not start.
  const auto both = std::launch::async | std::launch::deferred;
  auto text = std::async(threads->size() > 1 ? both : std::launch::deferred, open_tokenizer, path);
  REPRISE_TRY(auto model, Model::load(path, *threads, options.ctx, progress, expand));
  REPRISE_TRY(auto tokenizer, text.get());
  const ModelConfig& config = model->config();
  if (options.kv_type == kAutoKvType) {
    options.kv_type = kernels::kv_type_name(own_kv_type(options, *model));
  }
  REPRISE_TRY(const std::string format,
              choose_template(options.chat_template, tokenizer->data(), config.architecture));
  PromptBuilder prompts(*tokenizer, format);
  REPRISE_TRY(Computing computing, start_backend(options, *model, *threads, progress));
  auto& [kv, backend] = computing;
  if (!options.kv_disk.empty()) {
    REPRISE_CHECK(kv.add_disk(options.kv_disk, options.kv_disk_size));
  }
  const uint32_t context = options.ctx > 0 ? options.ctx : config.context;
  ModelInfo info = describe(*model, path, kv, context);
  auto impl = std::make_unique<Impl>(
      options, std::move(kv), std::move(threads), std::move(model), std::move(tokenizer),
      std::move(prompts), std::move(backend),
      SchedulerLimits{context, options.chunk, options.batch, options.prefix_cache});
  impl->info = std::move(info);
  impl->info.kv_type = options.kv_type;
  impl->info.load_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

const ModelInfo& Engine::info() const { return impl_->info; }
KvTiers Engine::kv() const { return impl_->kv.tiers(); }

Result<std::unique_ptr<Session>> Engine::open(std::string_view policy) {
  REPRISE_TRY(auto state, create_policy(policy_entries(), policy, impl_->model->config()));
  REPRISE_CHECK(impl_->backend->prepare(*state));
  return std::make_unique<Session>(
      std::make_unique<Session::Impl>(*impl_, std::string(policy), std::move(state)));
}

Status Engine::submit(Session& session, Request request, DoneFn on_done) {
  REPRISE_CHECK(session.impl().check_opened_on(*impl_));
  return impl_->scheduler.submit(session.impl().sequence, std::move(request), std::move(on_done));
}

bool Engine::step() { return impl_->scheduler.step(); }

std::vector<int32_t> Engine::tokenize(std::string_view text, bool parse_special,
                                      bool add_special) const {
  return impl_->tokenizer->encode(text,
                                  {.add_special = add_special, .parse_special = parse_special});
}

std::string Engine::detokenize(std::span<const int32_t> tokens, bool keep_special) const {
  return impl_->tokenizer->decode(tokens, keep_special);
}

Result<std::vector<int32_t>> Engine::chat_prompt(std::span<const Message> messages) const {
  return impl_->prompts.build(messages);
}

}  // namespace reprise
