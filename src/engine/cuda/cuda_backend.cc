#include "engine/cuda/cuda_backend.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "base/try.h"
#include "engine/cuda/cuda_rank.h"
#include "engine/cuda/rank_threads.h"
#include "kernels/cuda/kv_types.h"
#include "methods/attention_predictor/attention_predictor.h"
#include "methods/baselines/evicting.h"
#include "methods/cuda/csattention.h"
#include "methods/cuda/device_policies.h"
#include "methods/cuda/mac.h"
#include "methods/find_policy.h"
#include "methods/reattention/reattention.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

/// One device, or several that share the model: each computes every pass.
class CudaBackend : public Backend {
 public:
  CudaBackend(const Model& model, ThreadPool& pool, uint32_t ranks)
      : model_(model), pool_(pool), config_(model.config()), ranks_(ranks), threads_(ranks) {}
  ~CudaBackend() override;

  Status create(const EngineOptions& options, const ProgressFn& progress);
  Result<PagePool> make_pool(const EngineOptions& options);

  Status start(const ForwardPass& pass) override;
  Status finish() override;
  std::span<float> logits(size_t result) override {
    return ranks_.front()->logits(done_.turn, result);
  }
  int32_t token(size_t result) const override {
    return ranks_.front()->token(result, done_.positions[result]);
  }
  StepCost cost(size_t step) const override { return done_.costs[step]; }
  Status prepare(Policy& policy) override;
  bool samples() const override { return true; }
  Result<std::unique_ptr<FusionDevice>> fusion(uint64_t memory) override;

 private:
  struct Started {
    uint32_t turn = 0;
    bool timed = false;
    std::vector<int32_t> positions;  // [results]
    std::vector<StepCost> costs;     // [steps]
  };

  StepCost cost_of(const ForwardPass& pass, const SequenceStep& step, const Policy& acting) const;
  Result<uint64_t> kv_pages(uint64_t kv_memory, uint64_t hot_bytes, size_t page_bytes) const;
  Result<uint64_t> hot_pages(const EngineOptions& options, size_t page_bytes) const;
  /// Enqueues on every rank what they do together; body waits for nothing that is enqueued.
  Status enqueue(const std::function<Status(uint32_t rank)>& body);
  Status wait(const std::function<const CudaEvent&(uint32_t rank)>& event);
  Status wait(uint32_t turn) {
    return wait([&](uint32_t rank) -> const CudaEvent& { return ranks_[rank]->computed(turn); });
  }
  tl::unexpected<Error> give_up(const Error& error);

  const Model& model_;
  ThreadPool& pool_;
  const ModelConfig& config_;
  KvType kv_type_ = KvType::kBF16;
  std::vector<std::unique_ptr<CudaRank>> ranks_;
  RankThreads threads_;
  std::optional<Error> broken_;  // why ranks no longer work together
  std::deque<Started> started_;
  Started done_;
  uint32_t chunk_ = 0;  // rows of prompts in a pass
  uint32_t turn_ = 0;
};

Result<KvType> stored_type(const EngineOptions& options) {
  if (options.precision == "f32") return KvType::kF32;
  return device_kv_type(options.kv_type);
}

/// Whether a policy runs there: where everything is float, only what reads everything does.
Status check_policy(const Policy& policy, const ModelConfig& config, KvType type) {
  REPRISE_TRY(const auto made, device_policy(policy, config));
  if (type != KvType::kF32 || made == nullptr) return {};
  return fail(ErrorCode::kUnsupported,
              "policy {} does not run with --precision f32 on a GPU; choose full, or leave out "
              "--precision",
              policy.spec());
}

/// Whether the attention kernels have this shape.
Status check_heads(const ModelConfig& config) {
  const uint32_t dims[] = {64, 96, 128, 256};
  const uint32_t group = config.n_head / config.n_kv_head;
  if (std::find(std::begin(dims), std::end(dims), config.head_dim) != std::end(dims) &&
      group <= 16) {
    return {};
  }
  return fail(ErrorCode::kUnsupported,
              "--device cuda has heads of 64, 96, 128 and 256 dimensions and up to 16 query heads "
              "per KV head; this model has {} and {}; use --device cpu",
              config.head_dim, group);
}

/// Zeroes the tokens from first on in the host's copy of a page.
void clear_slots(KvType type, uint32_t n_kv_head, uint32_t head_dim, uint32_t first,
                 std::byte* page) {
  const uint32_t element = kernels::cuda::element_bytes(type);
  for (uint32_t tile = 0; tile < 2 * n_kv_head; ++tile) {
    std::byte* start = page + size_t{tile} * tile_bytes(type, head_dim);
    for (uint32_t token = first; token < kernels::cuda::kPageTokens; ++token) {
      for (uint32_t dim = 0; dim < head_dim; ++dim) {
        std::fill_n(start + element_offset(type, head_dim, token, dim), element, std::byte{0});
      }
      if (type != KvType::kFP8) continue;
      std::fill_n(start + fp8_scale_offset(head_dim, token), sizeof(float), std::byte{0});
    }
  }
}

CudaBackend::~CudaBackend() {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const DeviceScope scope(static_cast<int>(rank));
    ranks_[rank].reset();
  }
}

Status CudaBackend::create(const EngineOptions& options, const ProgressFn& progress) {
  REPRISE_CHECK(check_heads(config_));
  chunk_ = options.chunk;
  REPRISE_TRY(kv_type_, stored_type(options));
  std::vector<std::unique_ptr<Communicator>> communicators(1);
  if (ranks_.size() > 1) {
    REPRISE_CHECK(check_shards(config_, &model_.weights(), options.tp));
    REPRISE_TRY(communicators, Communicator::create(options.tp));
  }
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const DeviceScope scope(static_cast<int>(rank));
    REPRISE_TRY(ranks_[rank], CudaRank::create(model_, std::move(communicators[rank]), pool_,
                                               options, kv_type_, progress));
  }
  REPRISE_CHECK(enqueue([&](uint32_t rank) { return ranks_[rank]->connect(turn_); }));
  return wait(turn_);
}

Result<PagePool> CudaBackend::make_pool(const EngineOptions& options) {
  const size_t page = ranks_.front()->page_bytes() * ranks_.size();
  CudaRank::Pages pages;
  REPRISE_TRY(pages.hot, hot_pages(options, page));
  REPRISE_TRY(pages.device, kv_pages(options.kv_memory, pages.hot * page, page));
  pages.host = std::min<uint64_t>(options.kv_host / page, kMaxFrames - pages.device - pages.hot);
  pages.prefetch = prefetch_mode(options.kv_prefetch);
  std::vector<std::unique_ptr<DevicePageMemory>> devices;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const DeviceScope scope(static_cast<int>(rank));
    REPRISE_TRY(devices.emplace_back(), ranks_[rank]->make_pages(model_, pages));
  }
  const auto clear = [type = kv_type_, n_kv_head = config_.n_kv_head, head_dim = config_.head_dim](
                         std::byte* copy, size_t first) {
    clear_slots(type, n_kv_head, head_dim, static_cast<uint32_t>(first), copy);
  };
  const kernels::KvLayout layout = {kernels::KvType::kBF16, config_.n_kv_head, config_.head_dim};
  PageFrames frames(joint_page_memory(std::move(devices), page), page,
                    static_cast<uint32_t>(pages.device), static_cast<uint32_t>(pages.host),
                    static_cast<uint32_t>(pages.hot));
  return PagePool::create(std::move(frames), layout, config_.n_layer, clear);
}

Result<uint64_t> CudaBackend::hot_pages(const EngineOptions& options, size_t page_bytes) const {
  if (options.kv_hot == 0 || options.kv_prefetch == "none") return 0;
  const uint64_t pages = std::min<uint64_t>(options.kv_hot / page_bytes, kMaxFrames / 4);
  if (options.kv_host > 0 && pages >= config_.n_layer) return pages;
  return fail(ErrorCode::kInvalidArgument,
              "--kv-hot keeps pages of --kv-host at hand, at least one of {} bytes in each of {} "
              "layers; give more of both, or leave --kv-hot out",
              page_bytes, config_.n_layer);
}

/// Of page_bytes on all devices together.
Result<uint64_t> CudaBackend::kv_pages(uint64_t kv_memory, uint64_t hot_bytes,
                                       size_t page_bytes) const {
  size_t least = std::numeric_limits<size_t>::max();  // of any device
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const DeviceScope scope(static_cast<int>(rank));
    size_t free = 0, total = 0;
    REPRISE_CUDA(cudaMemGetInfo(&free, &total), "asking for free memory");
    least = std::min(least, free - std::min<size_t>(free, hot_bytes / ranks_.size()));
  }
  const uint64_t bytes = kv_memory > 0 ? kv_memory : default_device_kv_bytes(least) * ranks_.size();
  const uint64_t pages = std::min<uint64_t>(bytes / page_bytes, kMaxFrames);
  if (pages >= config_.n_layer) return pages;
  return fail(ErrorCode::kOutOfMemory,
              "{} MiB of device memory for KV hold less than one page of {} bytes in each of {} "
              "layers ({} MiB are free); raise --kv-memory or free device memory",
              bytes >> 20, page_bytes, config_.n_layer, least >> 20);
}

Status CudaBackend::prepare(Policy& policy) {
  const auto reuses_results = [](const Policy& one) {
    return find_policy<MacPolicy>(one) != nullptr;
  };
  policy.restrict_to([&](const Policy& one) {
    return check_policy(one, config_, kv_type_).has_value() &&
           (ranks_.size() == 1 || !reuses_results(one));
  });
  const auto acting = policy.acting();
  for (const Policy* each : acting) REPRISE_CHECK(check_policy(*each, config_, kv_type_));
  const bool reuses = std::any_of(acting.begin(), acting.end(),
                                  [&](const Policy* each) { return reuses_results(*each); });
  const auto codes = [](const Policy* each) {
    return find_policy<CsAttentionPolicy>(*each) != nullptr;
  };
  // Prompts are read for the first one.
  const auto asks_prompts = [&](const Policy* each) {
    return codes(each) || find_policy<AttentionPredictorPolicy>(*each) != nullptr;
  };
  if (std::any_of(acting.begin() + 1, acting.end(), asks_prompts)) {
    return fail(ErrorCode::kUnsupported,
                "policy {}: auto does not have csattention and attention_predictor with --device "
                "cuda; leave them out",
                policy.spec());
  }
  const bool evicts = dynamic_cast<EvictingPolicy*>(&policy.undecorated()) != nullptr;
  // All heads of a layer vote together.
  const bool votes = dynamic_cast<ReAttentionPolicy*>(&policy.undecorated()) != nullptr;
  if (ranks_.size() > 1 && (reuses || evicts || votes || codes(acting.front()))) {
    return fail(ErrorCode::kUnsupported,
                "policy {} runs on one device only; leave out --tp, or choose quest or streaming",
                policy.spec());
  }
  if (const auto grid = static_cast<uint32_t>(policy.prefill_grid()); grid > chunk_) {
    return fail(
        ErrorCode::kInvalidArgument,
        "policy {} takes prompts {} tokens at a time; raise --prefill-chunk from {} to that",
        policy.spec(), grid, chunk_);
  }
  return threads_.run([&](uint32_t rank) -> Status {
    for (const Policy* each : acting) REPRISE_CHECK(ranks_[rank]->prepare(*each));
    return {};
  });
}

Result<std::unique_ptr<FusionDevice>> CudaBackend::fusion(uint64_t memory) {
  if (kv_type_ == KvType::kF32) {
    return fail(ErrorCode::kUnsupported,
                "stored chunks are not used with --precision f32 on a GPU; leave it out, or use "
                "--device cpu");
  }
  std::vector<DeviceParts> parts;
  for (const auto& rank : ranks_) parts.push_back(rank->fusion_parts(model_, pool_));
  RankCalls calls;
  calls.run = [this](const RankCalls::Body& body) { return threads_.run(body); };
  calls.enqueue = [this](const RankCalls::Body& body) -> Status {
    if (broken_) return tl::unexpected<Error>(*broken_);
    return enqueue(body);
  };
  calls.wait = [this](const auto& event) { return wait(event); };
  return cuda_fusion(std::move(parts), std::move(calls), memory);
}

PassPlan plan_of(const ForwardPass& pass) {
  PassPlan plan;
  bool decodes = true;
  for (const SequenceStep& step : pass.steps) {
    if (step.phase != kernels::Phase::kDecode) {
      plan.acting.push_back(step.policy->acting().front());
      decodes = false;
      continue;
    }
    const DeviceStep own = step.policy->begin_device_step(pass.rows[step.first_row].position);
    plan.acting.push_back(own.policy);
    plan.timed = plan.timed || own.timed;
  }
  plan.timed = plan.timed && decodes;
  return plan;
}

Status CudaBackend::start(const ForwardPass& pass) {
  if (broken_) return tl::unexpected<Error>(*broken_);
  const PassPlan plan = plan_of(pass);
  // Memory is allocated here alone, while nothing that is enqueued waits for more to come.
  REPRISE_CHECK(threads_.run([&](uint32_t rank) { return ranks_[rank]->send(pass, plan, turn_); }));
  REPRISE_CHECK(enqueue([&](uint32_t rank) { return ranks_[rank]->start(pass, turn_); }));
  Started started;
  started.turn = turn_;
  for (const RowResult& result : pass.results) {
    started.positions.push_back(pass.rows[result.row].position);
  }
  started.timed = plan.timed;
  for (size_t i = 0; i < pass.steps.size(); ++i) {
    started.costs.push_back(cost_of(pass, pass.steps[i], *plan.acting[i]));
  }
  started_.push_back(std::move(started));
  turn_ = (turn_ + 1) % kPassTurns;
  return {};
}

Status CudaBackend::enqueue(const std::function<Status(uint32_t rank)>& body) {
  const Status status = threads_.run([&](uint32_t rank) {
    Status own = body(rank);
    if (!own) ranks_[rank]->abort();  // ranks that wait for its part of a call are told
    return own;
  });
  if (!status) return give_up(status.error());
  return {};
}

Status CudaBackend::finish() {
  done_ = std::move(started_.front());
  started_.pop_front();
  if (broken_) return tl::unexpected<Error>(*broken_);
  REPRISE_CHECK(wait(done_.turn));
  if (!done_.timed) return {};
  REPRISE_TRY(const double ms, ranks_.front()->pass_ms(done_.turn));
  for (StepCost& cost : done_.costs) cost.step_ms = ms;
  return {};
}

/// What a rank that fails leaves undone the others wait for: all are looked at until each is done.
Status CudaBackend::wait(const std::function<const CudaEvent&(uint32_t rank)>& event) {
  if (ranks_.size() == 1) return event(0).wait();
  for (size_t done = 0; done < ranks_.size();) {
    done = 0;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const Result<bool> reached = event(rank).reached();
      if (!reached) return give_up(reached.error());
      done += *reached ? 1 : 0;
    }
  }
  return {};
}

tl::unexpected<Error> CudaBackend::give_up(const Error& error) {
  if (ranks_.size() > 1) {
    for (const auto& rank : ranks_) rank->abort();
    broken_ = error;
  }
  return tl::unexpected<Error>(error);
}

StepCost CudaBackend::cost_of(const ForwardPass& pass, const SequenceStep& step,
                              const Policy& acting) const {
  StepCost cost;
  if (step.phase != kernels::Phase::kDecode) return cost;
  const auto rows = pass.rows.subspan(step.first_row, step.rows);
  const DevicePolicy* policy = ranks_.front()->policy(acting);
  for (uint32_t layer = 0; layer < config_.n_layer; ++layer) {
    StepCost own;
    add_visible(config_, layer, step, rows, own);
    cost.keys_visible += own.keys_visible;
    cost.full_kv_bytes += own.full_kv_bytes;
    if (policy == nullptr || policy->leaves_alone(layer) || config_.window[layer] > 0) {
      cost.keys_read += own.keys_visible;
      cost.kv_bytes_read += own.full_kv_bytes;
      continue;
    }
    const DeviceRow row = {step.policy, layer, rows.front().position};
    const uint64_t keys = policy->keys_read(row);
    cost.keys_read += keys * config_.n_kv_head;
    cost.kv_bytes_read += (keys + kernels::cuda::kPageTokens - 1) / kernels::cuda::kPageTokens *
                          step.kv->pool().page_bytes();
    cost.index_bytes_read += policy->index_bytes_read(row) * ranks_.size();
  }
  return cost;
}

}  // namespace

Status find_cuda_devices(uint32_t count) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    return fail(ErrorCode::kDeviceUnavailable,
                "--device cuda: no CUDA device was found ({}); check nvidia-smi and the driver, or "
                "use --device cpu",
                error != cudaSuccess ? cudaGetErrorString(error) : "the driver lists none");
  }
  if (count <= static_cast<uint32_t>(devices)) return {};
  return fail(ErrorCode::kDeviceUnavailable,
              "--tp {}: {} CUDA device{} found; lower --tp, or see CUDA_VISIBLE_DEVICES", count,
              devices, devices == 1 ? " was" : "s were");
}

Result<CudaEngine> cuda_engine(Model& model, ThreadPool& pool, const EngineOptions& options,
                               const ProgressFn& progress) {
  REPRISE_CHECK(find_cuda_devices(options.tp));
  auto backend = std::make_unique<CudaBackend>(model, pool, options.tp);
  REPRISE_CHECK(backend->create(options, progress));
  model.release_weights();
  REPRISE_TRY(PagePool kv, backend->make_pool(options));
  return CudaEngine{std::move(kv), std::move(backend)};
}

}  // namespace reprise
