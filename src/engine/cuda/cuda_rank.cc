#include "engine/cuda/cuda_rank.h"

#include <algorithm>
#include <set>

#include "base/try.h"
#include "methods/cuda/device_policies.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kPass = "a pass";

}  // namespace

Result<std::unique_ptr<CudaRank>> CudaRank::create(const Model& model,
                                                   std::unique_ptr<Communicator> communicator,
                                                   ThreadPool& pool, const EngineOptions& options,
                                                   KvType kv_type, const ProgressFn& progress) {
  std::unique_ptr<CudaRank> made(new CudaRank(model.config()));
  made->communicator_ = std::move(communicator);
  REPRISE_TRY(made->stream_, CudaStream::create());
  made->max_results_ = options.batch;
  made->max_rows_ = options.chunk + options.batch;
  REPRISE_TRY(made->model_,
              DeviceModel::create(model, made->communicator_.get(), pool,
                                  {made->max_rows_, made->max_results_, kv_type == KvType::kF32},
                                  progress));
  const ModelConfig& config = made->model_->config();
  made->kv_ = {nullptr, kv_type, config.n_kv_head, config.head_dim};
  REPRISE_CHECK(made->reserve());
  return made;
}

CudaRank::~CudaRank() {
  if (stream_.get() != nullptr) cudaStreamSynchronize(stream_.get());
}

Status CudaRank::reserve() {
  const uint32_t vocab = model_->config().vocab;
  REPRISE_CHECK(inputs_.reserve(max_rows_, max_results_));
  REPRISE_CHECK(logits_.reserve(model_->logits_room(max_results_), kPass));
  REPRISE_CHECK(chosen_.reserve(max_results_, kPass));
  REPRISE_CHECK(chosen_staged_.reserve(size_t{max_results_} * 2, kPass));
  for (CudaEvent& event : computed_) {
    REPRISE_TRY(event, CudaEvent::create(false));
  }
  for (auto& pair : timed_) {
    for (CudaEvent& event : pair) {
      REPRISE_TRY(event, CudaEvent::create(true));
    }
  }
  return sample_workspace_.reserve(sampling_workspace(max_results_, vocab), kPass);
}

size_t CudaRank::page_bytes() const {
  return size_t{2} * kv_.n_kv_head * tile_bytes(kv_.type, kv_.head_dim);
}

Result<std::unique_ptr<DevicePageMemory>> CudaRank::make_pages(const Model& model,
                                                               const Pages& room) {
  const ModelConfig& config = model_->config();
  const DevicePageMemory::Size size = {room.device,    room.host, page_bytes(),
                                       config.n_layer, room.hot,  kv_.n_kv_head};
  REPRISE_TRY(auto memory, DevicePageMemory::create(size, stream_.get()));
  memory_ = memory.get();
  kv_.pages = memory->slab(0);
  pool_pages_ = room.device + room.hot + room.host;
  memory->set_changed([this](const PageIds& pages, cudaStream_t stream) -> Status {
    for (const auto& [spec, policy] : policies_) {
      if (policy != nullptr) REPRISE_CHECK(policy->adopt(kv_, pages, stream));
    }
    return {};
  });
  std::vector<const RopeTable*> ropes;
  for (uint32_t layer = 0; layer < config.n_layer; ++layer) ropes.push_back(&model.rope(layer));
  REPRISE_TRY(executor_, DeviceExecutor::create(config, ropes, kv_, *memory_,
                                                {max_rows_, max_results_, room.prefetch}));
  return memory;
}

Status CudaRank::prepare(const Policy& policy) {
  if (policies_.contains(policy.spec())) return {};
  REPRISE_TRY(auto made, device_policy(policy, model_->config()));
  if (made != nullptr) {
    REPRISE_CUDA(cudaStreamSynchronize(stream_.get()), "adding a policy");
    REPRISE_CHECK(made->reserve(room()));
    memory_->join();
    REPRISE_CHECK(memory_->for_used([&](const PageIds& pages, cudaStream_t stream) {
      return made->adopt(kv_, pages, stream);
    }));
  }
  const auto added = policies_.emplace(policy.spec(), std::move(made)).first;
  Status set = set_policies();
  if (set) return {};
  policies_.erase(added);
  if (!set_policies()) has_room_ = false;
  return set;
}

Status CudaRank::set_policies() {
  std::vector<DevicePolicy*> present;
  for (const auto& [spec, each] : policies_) {
    if (each != nullptr) present.push_back(each.get());
  }
  graphs_.clear();  // every pass tells every policy what it stored
  return executor_->set_policies(std::move(present), room().capacity);
}

Status CudaRank::connect(uint32_t turn) {
  if (communicator_ != nullptr) {
    REPRISE_CHECK(communicator_->sum(logits_.data(), 1, stream_.get()));
    REPRISE_CHECK(communicator_->gather(logits_.data(), 1, stream_.get()));
  }
  return computed_[turn].record(stream_.get());
}

Status CudaRank::send(const ForwardPass& pass, const PassPlan& plan, uint32_t turn) {
  decode_rows_ = static_cast<uint32_t>(std::count_if(
      pass.steps.begin(), pass.steps.end(),
      [](const SequenceStep& step) { return step.phase == kernels::Phase::kDecode; }));
  is_timed_ = plan.timed;
  const auto chosen = [](const RowResult& result) { return result.sampling != nullptr; };
  samples_ = std::any_of(pass.results.begin(), pass.results.end(), chosen);
  const bool leads = communicator_ == nullptr || communicator_->rank() == 0;
  wants_logits_ = leads && !std::all_of(pass.results.begin(), pass.results.end(), chosen);
  if (wants_logits_) {
    REPRISE_CHECK(logits_staged_[turn].reserve(logits_.size(), "logits"));
  }
  REPRISE_CHECK(update_tables(pass, turn));
  group_steps(pass, plan);
  REPRISE_CHECK(plan_policies(pass, plan, turn));
  if (pass.rows.front().token == kChosenToken) return {};
  return inputs_.send(pass, decode_rows_, prefill_, turn, stream_.get());
}

Status CudaRank::start(const ForwardPass& pass, uint32_t turn) {
  REPRISE_CHECK(enqueue(pass, turn));
  if (wants_logits_) {
    const size_t bytes = pass.results.size() * model_->config().vocab * sizeof(float);
    REPRISE_CUDA(cudaMemcpyAsync(logits_staged_[turn].data(), logits_.data(), bytes,
                                 cudaMemcpyDeviceToHost, stream_.get()),
                 "copying logits");
  }
  return computed_[turn].record(stream_.get());
}

void CudaRank::abort() {
  graphs_.clear();
  if (communicator_ != nullptr) communicator_->abort();
}

std::span<float> CudaRank::logits(uint32_t turn, size_t result) const {
  const size_t vocab = model_->config().vocab;
  return logits_staged_[turn].span().subspan(result * vocab, vocab);
}

const DevicePolicy* CudaRank::policy(const Policy& policy) const {
  return policies_.find(policy.spec())->second.get();
}

DeviceParts CudaRank::fusion_parts(const Model& model, ThreadPool& pool) {
  return {model, communicator_.get(), *model_, *executor_, kv_, stream_.get(), max_rows_, pool};
}

DeviceRoom CudaRank::room() const {
  return {max_results_, std::max(tables_.capacity(), 1u), pool_pages_};
}

Status CudaRank::update_tables(const ForwardPass& pass, uint32_t turn) {
  const uint32_t capacity = tables_.capacity();
  Status made = tables_.update(pass.steps, turn, stream_.get());
  if (made && has_room_ && tables_.capacity() == capacity) return {};
  if (made) made = make_room();
  has_room_ = made.has_value();
  if (made) return {};
  tables_.shrink(capacity);  // passes that need no more go on
  has_room_ = make_room().has_value();
  return made;
}

Status CudaRank::make_room() {
  REPRISE_CUDA(cudaStreamSynchronize(stream_.get()), "growing tables");
  graphs_.clear();  // they know what is freed here
  for (const auto& [spec, policy] : policies_) {
    if (policy != nullptr) REPRISE_CHECK(policy->reserve(room()));
  }
  return set_policies();
}

void CudaRank::group_steps(const ForwardPass& pass, const PassPlan& plan) {
  groups_.clear();
  prefill_.clear();
  for (uint32_t i = 0; i < pass.steps.size(); ++i) {
    const SequenceStep& step = pass.steps[i];
    DevicePolicy* policy = policies_.find(plan.acting[i]->spec())->second.get();
    const bool joins = i != decode_rows_ && !groups_.empty() && groups_.back().policy == policy;
    if (!joins) groups_.push_back({i, 0, policy});
    ++groups_.back().count;
    if (i < decode_rows_) continue;
    prefill_.push_back(
        {step.first_row - decode_rows_, step.rows, pass.rows[step.first_row].position});
  }
}

Status CudaRank::plan_policies(const ForwardPass& pass, const PassPlan& plan, uint32_t turn) {
  const bool chooses = std::any_of(groups_.begin(), groups_.end(), [&](const DeviceGroup& group) {
    return group.policy != nullptr && group.first < decode_rows_;
  });
  if (chooses) REPRISE_CHECK(memory_->await_all());  // keys are looked at before the layers
  std::set<DevicePolicy*> present;
  for (const DeviceGroup& group : groups_) present.insert(group.policy);
  present.erase(nullptr);
  for (DevicePolicy* policy : present) {
    const DevicePlan own = {pass.rows, pass.steps, groups_, plan.acting, decode_rows_, turn};
    REPRISE_CHECK(policy->plan(own, stream_.get()));
  }
  for (DeviceGroup& group : groups_) {
    if (group.policy != nullptr && group.first < decode_rows_) {
      group.variant = group.policy->variant(group);
    }
  }
  return {};
}

DeviceRows CudaRank::device_rows(const ForwardPass& pass) const {
  DeviceRows rows;
  rows.rows = static_cast<uint32_t>(pass.rows.size());
  rows.decode_rows = decode_rows_;
  rows.positions = inputs_.positions.device();
  rows.sequences = inputs_.sequences.device();
  rows.prefill_steps = static_cast<uint32_t>(pass.steps.size()) - decode_rows_;
  rows.prefill = inputs_.prefill.device();
  rows.tables = tables_.data();
  rows.table_rows = tables_.rows();
  rows.capacity = tables_.capacity();
  rows.groups = groups_;
  rows.host_prefill = prefill_;
  rows.far_pages = pass.steps.front().kv->pool().reads_host();
  return rows;
}

Status CudaRank::enqueue(const ForwardPass& pass, uint32_t turn) {
  const DeviceRows rows = device_rows(pass);
  const auto results = static_cast<uint32_t>(pass.results.size());
  if (decode_rows_ < rows.rows) return enqueue_rows(rows, results);
  REPRISE_CHECK(memory_->await_all());  // what is captured waits for nothing outside
  const GraphKey key = {rows.rows, tables_.rows(), inputs_.history_capacity, samples_, groups_};
  auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    REPRISE_TRY(auto graph,
                StepGraph::capture(stream_.get(), [&] { return enqueue_rows(rows, results); }));
    found = graphs_.emplace(key, std::move(graph)).first;
  }
  if (!is_timed_) return found->second.launch(stream_.get());
  REPRISE_CHECK(timed_[turn][0].record(stream_.get()));
  REPRISE_CHECK(found->second.launch(stream_.get()));
  return timed_[turn][1].record(stream_.get());
}

Status CudaRank::enqueue_rows(const DeviceRows& rows, uint32_t results) {
  REPRISE_CHECK(executor_->begin(rows, stream_.get()));
  DevicePass pass;
  pass.rows = rows.rows;
  pass.decode_rows = rows.decode_rows;
  pass.tokens = inputs_.tokens.device();
  pass.prefill_results = inputs_.prefill_results.device();
  pass.results = results;
  pass.logits = logits_.data();
  REPRISE_CHECK(model_->forward(pass, *executor_, stream_.get()));
  REPRISE_CHECK(executor_->end(stream_.get()));
  if (!samples_) return {};
  REPRISE_CUDA(sample(sample_args(rows, results), stream_.get()), "choosing tokens");
  return {};
}

/// After a pass of decode rows alone its tokens and positions are the next pass's.
SampleArgs CudaRank::sample_args(const DeviceRows& rows, uint32_t results) const {
  const bool decode = rows.decode_rows == rows.rows;
  SampleArgs args;
  args.logits = logits_.data();
  args.batch = results;
  args.vocab = model_->config().vocab;
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

}  // namespace reprise
