#include "engine/cuda/cuda_backend.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "attention/cuda/device_executor.h"
#include "base/try.h"
#include "engine/cuda/pass_inputs.h"
#include "engine/cuda/pass_tables.h"
#include "engine/cuda/step_graph.h"
#include "kernels/cuda/sampling.h"
#include "kv/cuda/device_page_memory.h"
#include "methods/cuda/device_policies.h"
#include "model/cuda/device_model.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr uint32_t kTurns = 2;  // passes that may be under way

/// What a captured pass depends on: rows, rows of the page tables, tokens of history, whether
/// tokens are chosen, policies.
using GraphKey = std::tuple<uint32_t, uint32_t, uint32_t, bool, std::vector<DeviceGroup>>;

class CudaBackend : public Backend {
 public:
  CudaBackend(const ModelConfig& config, CudaStream stream)
      : config_(config), stream_(std::move(stream)), tables_(config.n_layer) {}
  ~CudaBackend() override { cudaStreamSynchronize(stream_.get()); }

  Status create(Model& model, ThreadPool& pool, const EngineOptions& options,
                const ProgressFn& progress);
  Result<PagePool> make_pool(const EngineOptions& options);
  Status make_executor(const Model& model, const PagePool& pool);

  Status start(const ForwardPass& pass) override;
  Status finish() override;
  std::span<float> logits(size_t result) override {
    return logits_staged_[done_.turn].span().subspan(result * config_.vocab, config_.vocab);
  }
  int32_t token(size_t result) const override {
    const auto parity = static_cast<size_t>(done_.positions[result]) % 2;
    return chosen_staged_.data()[result * 2 + parity];
  }
  StepCost cost(size_t step) const override { return done_.costs[step]; }
  Status prepare(const Policy& policy) override;
  bool samples() const override { return true; }

 private:
  struct Started {
    uint32_t turn = 0;
    std::vector<int32_t> positions;  // [results]
    std::vector<StepCost> costs;     // [steps]
  };

  DeviceRoom room() const;
  Status update_tables(const ForwardPass& pass);
  void group_steps(const ForwardPass& pass, uint32_t decode_rows);
  DevicePolicy* policy_of(const SequenceStep& step) const;
  StepCost cost_of(const ForwardPass& pass, const SequenceStep& step) const;
  Status enqueue(const ForwardPass& pass, uint32_t decode_rows, bool samples);
  Status enqueue_rows(const DeviceRows& rows, uint32_t results, bool samples);
  Status copy_logits(const ForwardPass& pass, uint32_t turn);
  DeviceRows device_rows(const ForwardPass& pass, uint32_t decode_rows) const;
  SampleArgs sample_args(const DeviceRows& rows, uint32_t results) const;

  const ModelConfig& config_;
  CudaStream stream_;
  KvType kv_type_ = KvType::kBF16;
  PagedKv kv_;
  uint64_t pool_pages_ = 0;
  uint32_t max_rows_ = 0, max_results_ = 0;
  std::unique_ptr<DeviceModel> model_;
  std::unique_ptr<DeviceExecutor> executor_;
  PassTables tables_;
  PassInputs inputs_;
  DeviceBuffer<float> logits_;                 // [results, vocab]
  PinnedBuffer<float> logits_staged_[kTurns];  // the same
  DeviceBuffer<int32_t> chosen_;               // [results] of passes with prefill rows
  PinnedBuffer<int32_t> chosen_staged_;        // [results][position % 2]
  DeviceBuffer<std::byte> sample_workspace_;
  CudaEvent computed_[kTurns];
  std::map<GraphKey, StepGraph> graphs_;  // of decode-only passes
  std::map<std::string, std::unique_ptr<DevicePolicy>, std::less<>> policies_;  // by Policy::spec
  std::vector<DeviceGroup> groups_;   // of the pass being started
  std::vector<PrefillRows> prefill_;  // of its prefill steps
  std::deque<Started> started_;
  Started done_;
  uint32_t turn_ = 0;
};

Result<KvType> device_kv_type(std::string_view name) {
  if (name == "bf16") return KvType::kBF16;
  if (name == "f16") return KvType::kF16;
  if (name == "fp8") return KvType::kFP8;
  return fail(ErrorCode::kUnsupported,
              "--kv-type {} is not there with --device cuda; choose bf16, f16 or fp8", name);
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
  const uint32_t element = type == KvType::kFP8 ? 1 : 2;
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

Status CudaBackend::create(Model& model, ThreadPool& pool, const EngineOptions& options,
                           const ProgressFn& progress) {
  constexpr std::string_view kWhat = "a pass";
  REPRISE_CHECK(check_heads(config_));
  REPRISE_TRY(kv_type_, device_kv_type(options.kv_type));
  max_results_ = options.batch;
  max_rows_ = options.chunk + options.batch;
  REPRISE_TRY(model_, DeviceModel::create(model, pool, max_rows_, max_results_, progress));
  REPRISE_CHECK(inputs_.reserve(max_rows_, max_results_));
  const size_t logits = size_t{max_results_} * config_.vocab;
  REPRISE_CHECK(logits_.reserve(logits, kWhat));
  REPRISE_CHECK(chosen_.reserve(max_results_, kWhat));
  REPRISE_CHECK(chosen_staged_.reserve(size_t{max_results_} * 2, kWhat));
  for (CudaEvent& event : computed_) {
    REPRISE_TRY(event, CudaEvent::create());
  }
  return sample_workspace_.reserve(sampling_workspace(max_results_, config_.vocab), kWhat);
}

Result<PagePool> CudaBackend::make_pool(const EngineOptions& options) {
  size_t free = 0, total = 0;
  REPRISE_CUDA(cudaMemGetInfo(&free, &total), "asking for free memory");
  const uint64_t bytes = options.kv_memory > 0 ? options.kv_memory : default_device_kv_bytes(free);
  const size_t page = size_t{2} * config_.n_kv_head * tile_bytes(kv_type_, config_.head_dim);
  const uint64_t pages = bytes / page;
  if (pages < config_.n_layer) {
    return fail(ErrorCode::kOutOfMemory,
                "{} MiB of device memory for KV hold less than one page of {} bytes in each of {} "
                "layers ({} MiB are free); raise --kv-memory or free device memory",
                bytes >> 20, page, config_.n_layer, free >> 20);
  }
  REPRISE_TRY(auto memory, device_page_memory(pages * page, stream_.get()));
  pool_pages_ = pages;
  const kernels::KvLayout layout = {kernels::KvType::kBF16, config_.n_kv_head, config_.head_dim};
  const auto clear = [type = kv_type_, n_kv_head = config_.n_kv_head, head_dim = config_.head_dim](
                         std::byte* copy, size_t first) {
    clear_slots(type, n_kv_head, head_dim, static_cast<uint32_t>(first), copy);
  };
  return PagePool::create(std::move(memory), layout, page, config_.n_layer, pages, clear);
}

Status CudaBackend::make_executor(const Model& model, const PagePool& pool) {
  std::vector<const RopeTable*> ropes;
  for (uint32_t layer = 0; layer < config_.n_layer; ++layer) ropes.push_back(&model.rope(layer));
  const PagedKv kv = {pool.data(0, 0), kv_type_, config_.n_kv_head, config_.head_dim};
  REPRISE_TRY(executor_, DeviceExecutor::create(config_, ropes, kv, {max_rows_, max_results_}));
  return {};
}

Status CudaBackend::prepare(const Policy& policy) {
  if (policies_.contains(policy.spec())) return {};
  REPRISE_TRY(auto made, device_policy(policy, config_));
  if (made != nullptr) {
    REPRISE_CUDA(cudaStreamSynchronize(stream_.get()), "adding a policy");
    REPRISE_CHECK(made->reserve(room()));
    REPRISE_CHECK(made->adopt(kv_, stream_.get()));
  }
  policies_.emplace(policy.spec(), std::move(made));
  std::vector<DevicePolicy*> present;
  for (const auto& [spec, each] : policies_) {
    if (each != nullptr) present.push_back(each.get());
  }
  graphs_.clear();  // every pass tells every policy what it stored
  return executor_->set_policies(std::move(present));
}

DeviceRoom CudaBackend::room() const {
  return {max_results_, std::max(tables_.capacity(), 1u), pool_pages_};
}

Status CudaBackend::start(const ForwardPass& pass) {
  const auto decode_rows = static_cast<uint32_t>(std::count_if(
      pass.steps.begin(), pass.steps.end(),
      [](const SequenceStep& step) { return step.phase == kernels::Phase::kDecode; }));
  REPRISE_CHECK(update_tables(pass));
  group_steps(pass, decode_rows);
  if (pass.rows.front().token != kChosenToken) {
    REPRISE_CHECK(inputs_.send(pass, decode_rows, prefill_, turn_, stream_.get()));
  }
  const bool samples = std::any_of(pass.results.begin(), pass.results.end(),
                                   [](const RowResult& r) { return r.sampling != nullptr; });
  REPRISE_CHECK(enqueue(pass, decode_rows, samples));
  REPRISE_CHECK(copy_logits(pass, turn_));
  REPRISE_CHECK(computed_[turn_].record(stream_.get()));
  Started started;
  started.turn = turn_;
  for (const RowResult& result : pass.results) {
    started.positions.push_back(pass.rows[result.row].position);
  }
  for (const SequenceStep& step : pass.steps) started.costs.push_back(cost_of(pass, step));
  started_.push_back(std::move(started));
  turn_ = (turn_ + 1) % kTurns;
  return {};
}

Status CudaBackend::update_tables(const ForwardPass& pass) {
  const uint32_t capacity = tables_.capacity();
  REPRISE_CHECK(tables_.update(pass.steps, turn_, stream_.get()));
  if (tables_.capacity() == capacity) return {};
  REPRISE_CUDA(cudaStreamSynchronize(stream_.get()), "growing tables");
  graphs_.clear();
  for (const auto& [spec, policy] : policies_) {
    if (policy != nullptr) REPRISE_CHECK(policy->reserve(room()));
  }
  return {};
}

void CudaBackend::group_steps(const ForwardPass& pass, uint32_t decode_rows) {
  groups_.clear();
  prefill_.clear();
  for (uint32_t i = 0; i < pass.steps.size(); ++i) {
    DevicePolicy* policy = policy_of(pass.steps[i]);
    const bool joins = i != decode_rows && !groups_.empty() && groups_.back().policy == policy;
    if (!joins) groups_.push_back({i, 0, policy});
    ++groups_.back().count;
    const SequenceStep& step = pass.steps[i];
    if (i < decode_rows) continue;
    prefill_.push_back(
        {step.first_row - decode_rows, step.rows, pass.rows[step.first_row].position});
  }
}

DevicePolicy* CudaBackend::policy_of(const SequenceStep& step) const {
  return policies_.find(step.policy->spec())->second.get();
}

StepCost CudaBackend::cost_of(const ForwardPass& pass, const SequenceStep& step) const {
  StepCost cost;
  if (step.phase != kernels::Phase::kDecode) return cost;
  const auto rows = pass.rows.subspan(step.first_row, step.rows);
  const DevicePolicy* policy = policy_of(step);
  const int32_t position = rows.front().position;
  for (uint32_t layer = 0; layer < config_.n_layer; ++layer) {
    StepCost own;
    add_visible(config_, layer, step, rows, own);
    cost.keys_visible += own.keys_visible;
    cost.full_kv_bytes += own.full_kv_bytes;
    if (policy == nullptr || config_.window[layer] > 0) {
      cost.keys_read += own.keys_visible;
      cost.kv_bytes_read += own.full_kv_bytes;
      continue;
    }
    const uint64_t keys = policy->keys_read(position);
    cost.keys_read += keys * config_.n_kv_head;
    cost.kv_bytes_read += (keys + kernels::cuda::kPageTokens - 1) / kernels::cuda::kPageTokens *
                          step.kv->pool().page_bytes();
    cost.index_bytes_read += policy->index_bytes_read(position);
  }
  return cost;
}

DeviceRows CudaBackend::device_rows(const ForwardPass& pass, uint32_t decode_rows) const {
  DeviceRows rows;
  rows.rows = static_cast<uint32_t>(pass.rows.size());
  rows.decode_rows = decode_rows;
  rows.positions = inputs_.positions.device();
  rows.sequences = inputs_.sequences.device();
  rows.prefill_steps = static_cast<uint32_t>(pass.steps.size()) - decode_rows;
  rows.prefill = inputs_.prefill.device();
  rows.tables = tables_.data();
  rows.table_rows = tables_.rows();
  rows.capacity = tables_.capacity();
  rows.groups = groups_;
  rows.host_prefill = prefill_;
  return rows;
}

Status CudaBackend::enqueue(const ForwardPass& pass, uint32_t decode_rows, bool samples) {
  const DeviceRows rows = device_rows(pass, decode_rows);
  const auto results = static_cast<uint32_t>(pass.results.size());
  if (decode_rows < rows.rows) return enqueue_rows(rows, results, samples);
  const GraphKey key = {rows.rows, tables_.rows(), inputs_.history_capacity, samples, groups_};
  auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    REPRISE_TRY(auto graph, StepGraph::capture(stream_.get(), [&] {
                  return enqueue_rows(rows, results, samples);
                }));
    found = graphs_.emplace(key, std::move(graph)).first;
  }
  return found->second.launch(stream_.get());
}

Status CudaBackend::enqueue_rows(const DeviceRows& rows, uint32_t results, bool samples) {
  REPRISE_CHECK(executor_->begin(rows, stream_.get()));
  DevicePass pass;
  pass.rows = rows.rows;
  pass.decode_rows = rows.decode_rows;
  pass.tokens = inputs_.tokens.device();
  pass.prefill_results = inputs_.prefill_results.device();
  pass.results = results;
  pass.logits = logits_.data();
  REPRISE_CHECK(model_->forward(pass, *executor_, stream_.get()));
  if (!samples) return {};
  REPRISE_CUDA(sample(sample_args(rows, results), stream_.get()), "choosing tokens");
  return {};
}

/// After a pass of decode rows alone its tokens and positions are the next pass's.
SampleArgs CudaBackend::sample_args(const DeviceRows& rows, uint32_t results) const {
  const bool decode = rows.decode_rows == rows.rows;
  SampleArgs args;
  args.logits = logits_.data();
  args.batch = results;
  args.vocab = config_.vocab;
  args.rules = inputs_.rules.device();
  args.history = inputs_.history.device();
  args.history_capacity = inputs_.history_capacity;
  args.positions = decode ? inputs_.positions.device() : inputs_.result_positions.device();
  args.tokens = decode ? inputs_.tokens.device() : chosen_.data();
  args.advance = decode;
  args.host_tokens = chosen_staged_.data();
  args.workspace = sample_workspace_.data();
  return args;
}

Status CudaBackend::copy_logits(const ForwardPass& pass, uint32_t turn) {
  const bool wanted = std::any_of(pass.results.begin(), pass.results.end(),
                                  [](const RowResult& r) { return r.sampling == nullptr; });
  if (!wanted) return {};
  const size_t count = pass.results.size() * config_.vocab;
  REPRISE_CHECK(logits_staged_[turn].reserve(size_t{max_results_} * config_.vocab, "logits"));
  REPRISE_CUDA(cudaMemcpyAsync(logits_staged_[turn].data(), logits_.data(), count * sizeof(float),
                               cudaMemcpyDeviceToHost, stream_.get()),
               "copying logits");
  return {};
}

Status CudaBackend::finish() {
  done_ = std::move(started_.front());
  started_.pop_front();
  return computed_[done_.turn].wait();
}

}  // namespace

Status find_cuda_device() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return {};
  return fail(ErrorCode::kDeviceUnavailable,
              "--device cuda: no CUDA device was found ({}); check nvidia-smi and the driver, or "
              "use --device cpu",
              error != cudaSuccess ? cudaGetErrorString(error) : "the driver lists none");
}

Result<CudaEngine> cuda_engine(Model& model, ThreadPool& pool, const EngineOptions& options,
                               const ProgressFn& progress) {
  REPRISE_CHECK(find_cuda_device());
  REPRISE_TRY(auto stream, CudaStream::create());
  auto backend = std::make_unique<CudaBackend>(model.config(), std::move(stream));
  REPRISE_CHECK(backend->create(model, pool, options, progress));
  model.release_weights();
  REPRISE_TRY(PagePool kv, backend->make_pool(options));
  REPRISE_CHECK(backend->make_executor(model, kv));
  return CudaEngine{std::move(kv), std::move(backend)};
}

}  // namespace reprise
