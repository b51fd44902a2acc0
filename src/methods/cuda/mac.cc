#include "methods/cuda/mac.h"

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "methods/find_policy.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "mac";

/// The ring of a sequence.
class State : public MacOnDevice {
 public:
  State(std::shared_ptr<MacRingPool> pool, float threshold)
      : pool_(std::move(pool)), threshold_(threshold) {}
  ~State() override {
    if (ring_ != kNoRing) pool_->release(ring_);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::vector<MacSums> sums() const override {
    if (ring_ == kNoRing) return {};
    std::vector<MacSums> sums = pool_->sums(ring_);
    for (MacSums& each : sums) each.distance /= threshold_;
    return sums;
  }
  void clear_sums() override {
    ringless_ = 0;
    if (ring_ != kNoRing) pool_->clear_sums(ring_);
  }
  uint64_t bytes() const override { return ring_ != kNoRing ? pool_->ring_bytes() : 0; }
  uint64_t all_bytes() const override { return pool_->bytes(); }
  uint64_t ringless_rows() const override { return ringless_; }
  // A failure is the device's, and the next pass reports it: then nothing is known of the ring.
  std::vector<int32_t> positions() const override {
    if (ring_ == kNoRing) return {};
    return pool_->positions(ring_).value_or(std::vector<int32_t>());
  }
  std::vector<std::byte> fetch() const override {
    if (ring_ == kNoRing) return {};
    return pool_->fetch(ring_).value_or(std::vector<std::byte>());
  }

  uint32_t ring() const { return ring_; }
  Status take_ring() {
    REPRISE_TRY(ring_, pool_->take(&ring_));
    return {};
  }
  void miss_ring(uint32_t rows) { ringless_ += rows; }

 private:
  std::shared_ptr<MacRingPool> pool_;
  float threshold_;
  uint32_t ring_ = kNoRing;
  uint64_t ringless_ = 0;
};

MacRules rules_of(const MacSettings& settings) {
  MacRules rules;
  rules.sink = settings.cut.sink;
  rules.band = settings.cut.band;
  rules.align = settings.cut.align;
  rules.min_context = settings.min_context;
  rules.max_gap = settings.max_gap;
  rules.max_age = settings.max_age;
  rules.distance2 = settings.distance2;
  rules.max_error = settings.max_error;
  rules.split = settings.split;
  rules.anchored = settings.anchored;
  rules.guarded = settings.guarded;
  return rules;
}

}  // namespace

DeviceMac::DeviceMac(const MacPolicy& policy, const ModelConfig& config,
                     std::unique_ptr<DevicePolicy> inner)
    : config_(config),
      settings_(policy.settings()),
      coded_(policy.ring_type() == kernels::KvType::kQ8_0),
      rules_(rules_of(settings_)),
      inner_(std::move(inner)) {}

Status DeviceMac::reserve(const DeviceRoom& room) {
  if (inner_ != nullptr) REPRISE_CHECK(inner_->reserve(room));
  constexpr uint32_t kMaxPairs = 1000;
  if (room.sequences * config_.n_kv_head > kMaxPairs) {
    return fail(ErrorCode::kUnsupported,
                "mac on a device serves up to {} sequences at once with this model; lower --batch",
                kMaxPairs / config_.n_kv_head);
  }
  std::vector<bool> layers;
  for (uint32_t layer = 0; layer < config_.n_layer; ++layer) {
    layers.push_back(config_.window[layer] == 0 && !leaves_alone(layer));
  }
  pool_->describe(config_, static_cast<uint32_t>(settings_.window), coded_, layers);
  REPRISE_TRY(const uint32_t rings, most_rings(room));
  REPRISE_CHECK(pool_->reserve(rings));
  sent_.assign(room.sequences, kNoRing - 1);  // unlike any
  REPRISE_CHECK(sent_rings_.reserve(room.sequences, kWhat));
  REPRISE_CHECK(sent_seeds_.reserve(room.sequences, kWhat));
  const size_t heads = static_cast<size_t>(settings_.window) * config_.n_head;
  REPRISE_CHECK(seed_out_.reserve(heads * config_.head_dim, kWhat));
  REPRISE_CHECK(seed_lse_.reserve(heads, kWhat));
  REPRISE_CHECK(prefill_workspace_.reserve(kUnsplitPrefillWorkspace, kWhat));
  return workspace_.reserve(
      mac_workspace(rules_, room.sequences, config_.n_head, config_.n_kv_head, config_.head_dim),
      kWhat);
}

Result<uint32_t> DeviceMac::most_rings(const DeviceRoom& room) const {
  constexpr uint64_t kMost = 1 << 16;
  const uint64_t bytes = settings_.ring_memory, one = pool_->ring_bytes();
  if (bytes == 0) return room.sequences;
  if (bytes >= one)
    return static_cast<uint32_t>(std::min(kMost, bytes / std::max<uint64_t>(one, 1)));
  return fail(ErrorCode::kOutOfMemory,
              "a ring of mac takes {} MiB with this model, ring_memory is {} MiB; raise it, or "
              "choose ring=q8_0 or a smaller window",
              one >> 20, bytes >> 20);
}

void DeviceMac::keep_rings(const DevicePlan& plan) {
  for (const DeviceGroup& group : plan.groups) {
    if (group.policy != this) continue;
    for (uint32_t i = group.first; i < group.first + group.count; ++i) {
      const auto& policy = *find_policy<MacPolicy>(*plan.acting[i]);
      const auto* state = static_cast<const State*>(policy.device().state.get());
      if (state != nullptr && state->ring() != kNoRing) pool_->use(state->ring());
    }
  }
}

Result<uint32_t> DeviceMac::ring_of(const MacPolicy& policy, uint32_t rows) {
  MacPolicy::Device& host = policy.device();
  const auto from = std::static_pointer_cast<State>(host.state);
  if (from == nullptr || from.use_count() > 2) {  // of a fork: this one and from
    auto own = std::make_shared<State>(pool_, std::sqrt(settings_.distance2));
    if (from != nullptr && from->ring() != kNoRing) {
      pool_->use(from->ring());
      REPRISE_CHECK(own->take_ring());
      if (own->ring() != kNoRing) REPRISE_CHECK(pool_->copy(from->ring(), own->ring()));
    }
    host.state = own;
  }
  auto& own = static_cast<State&>(*host.state);
  if (own.ring() == kNoRing && rows > 0) {
    REPRISE_CHECK(own.take_ring());
    if (own.ring() == kNoRing) own.miss_ring(rows);
  }
  if (own.ring() == kNoRing) return kNoRing;
  if (const MacDeviceRing* restored = policy.restored()) {
    REPRISE_CHECK(pool_->adopt(own.ring(), restored->bytes));
    policy.taken_over();
  }
  REPRISE_CHECK(host.forget([&](int32_t position) { return pool_->forget(own.ring(), position); }));
  return own.ring();
}

PrefillRows DeviceMac::seeds_of(const SequenceStep& step, int32_t position) const {
  const int32_t end = position + static_cast<int32_t>(step.rows);
  int32_t first = std::max(position, step.prompt_end - settings_.window);
  first =
      std::max({first, settings_.min_context - settings_.window, settings_.cut.first_position()});
  if (first >= end) return {};
  return {0, static_cast<uint32_t>(end - first), first};
}

std::vector<DeviceGroup> DeviceMac::inner_groups(std::span<const DeviceGroup> groups) const {
  std::vector<DeviceGroup> own(groups.begin(), groups.end());
  for (DeviceGroup& group : own) {
    if (group.policy == this) group.policy = inner_.get();
  }
  return own;
}

uint64_t DeviceMac::variant(const DeviceGroup& group) const {
  return inner_ != nullptr ? inner_->variant(group) : 0;
}

Status DeviceMac::plan(const DevicePlan& plan, cudaStream_t stream) {
  if (inner_ != nullptr) {
    const auto groups = inner_groups(plan.groups);
    DevicePlan inner = plan;
    inner.groups = groups;
    REPRISE_CHECK(inner_->plan(inner, stream));
  }
  pool_->begin_pass(stream);
  keep_rings(plan);
  rings_.assign(plan.steps.size(), kNoRing);
  seeds_.assign(plan.steps.size(), {});
  follows_.assign(plan.steps.size(), 1);
  for (const DeviceGroup& group : plan.groups) {
    if (group.policy != this) continue;
    for (uint32_t i = group.first; i < group.first + group.count; ++i) {
      REPRISE_CHECK(plan_step(plan, i));
    }
  }
  const bool seeds = std::any_of(seeds_.begin(), seeds_.end(),
                                 [](const PrefillRows& rows) { return rows.count > 0; });
  if (seeds) REPRISE_CHECK(sent_seeds_.send(seeds_, plan.turn, stream));
  const auto decoding = rings_.begin() + plan.decode_rows;
  if (std::equal(rings_.begin(), decoding, sent_.begin())) return {};
  std::copy(rings_.begin(), decoding, sent_.begin());
  return sent_rings_.send(sent_, plan.turn, stream);
}

Status DeviceMac::plan_step(const DevicePlan& plan, uint32_t index) {
  const SequenceStep& step = plan.steps[index];
  const int32_t position = plan.rows[step.first_row].position;
  PrefillRows seeds;
  if (step.phase == kernels::Phase::kPrefill) seeds = seeds_of(step, position);
  const bool stores = step.phase == kernels::Phase::kDecode && settings_.stores(position);
  REPRISE_TRY(rings_[index],
              ring_of(*find_policy<MacPolicy>(*plan.acting[index]), stores ? 1 : seeds.count));
  if (rings_[index] != kNoRing) seeds_[index] = seeds;
  follows_[index] = seeds.position + settings_.window != step.prompt_end ? 1 : 0;
  return {};
}

Status DeviceMac::attend(const DeviceQueries& queries, const DeviceResult& result,
                         cudaStream_t stream) {
  MacArgs args;
  args.kv = queries.kv;
  args.pages = queries.pages;
  args.positions = queries.positions;
  args.rings = sent_rings_.device() + queries.first;
  args.batch = queries.count;
  args.capacity = queries.capacity;
  args.n_head = queries.n_head;
  args.q_plain = queries.q_plain;
  args.q = queries.q_exact;
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.ring = pool_->rings(queries.layer);
  args.rules = rules_;
  args.lists = {queries.pages, nullptr, queries.keys, 1, queries.capacity};
  if (inner_ != nullptr) {
    DeviceRead read;
    REPRISE_CHECK(inner_->select(queries, read, stream));
    args.lists = read.lists;
    args.numbers = read.numbers;
  }
  args.out = result.out;
  args.lse = result.lse;
  args.workspace = workspace_.data();
  REPRISE_CUDA(mac_decode(args, stream), "decode attention");
  return {};
}

Status DeviceMac::after_prefill(const DevicePrompt& prompt, cudaStream_t stream) {
  if (inner_ != nullptr) REPRISE_CHECK(inner_->after_prefill(prompt, stream));
  const PrefillRows& rows = seeds_[prompt.step];
  if (rows.count == 0 || !pool_->has(prompt.layer)) return {};
  const auto before = static_cast<size_t>(rows.position - prompt.rows.position);
  const size_t skipped = before * config_.n_head * config_.head_dim;
  PagedPrefillArgs args;
  args.kv = prompt.kv;
  args.sequences = sent_seeds_.device() + prompt.step;
  args.pages = prompt.pages;
  args.batch = 1;  // so that capacity does not matter
  args.n_head = config_.n_head;
  args.rows = rows.count;
  args.keys = 0;
  args.q = prompt.q + skipped;
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.first_key = settings_.cut.sink;
  args.lag = settings_.cut.band;
  args.align = settings_.cut.align;
  args.out = seed_out_.data();
  args.f32_out = true;
  args.lse = seed_lse_.data();
  args.workspace = prefill_workspace_.data();
  REPRISE_CUDA(paged_prefill(args, stream), "attention over a prompt's past");
  MacSeedArgs seed;
  seed.ring = pool_->rings(prompt.layer);
  seed.number = rings_[prompt.step];
  seed.rows = rows;
  seed.follows = follows_[prompt.step] != 0;
  seed.n_head = config_.n_head;
  seed.n_kv_head = config_.n_kv_head;
  seed.head_dim = config_.head_dim;
  seed.q_plain = prompt.q_plain + skipped;
  seed.out = seed_out_.data();
  seed.lse = seed_lse_.data();
  seed.full_lse = prompt.lse + before * config_.n_head;
  REPRISE_CUDA(mac_seed(seed, stream), "filling a ring");
  return {};
}

Status DeviceMac::adopt(const PagedKv& kv, const PageIds& pages, cudaStream_t stream) {
  return inner_ != nullptr ? inner_->adopt(kv, pages, stream) : Status();
}

Status DeviceMac::begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) {
  if (inner_ == nullptr) return {};
  const auto groups = inner_groups(rows.groups);
  DeviceRows inner = rows;
  inner.groups = groups;
  return inner_->begin(inner, kv, stream);
}

Status DeviceMac::after_prefill_store(const DeviceRows& rows, uint32_t layer, const PagedKv& kv,
                                      cudaStream_t stream) {
  return inner_ != nullptr ? inner_->after_prefill_store(rows, layer, kv, stream) : Status();
}

void DeviceMac::leave_alone(std::vector<bool> layers) {
  if (inner_ != nullptr) inner_->leave_alone(layers);
  DevicePolicy::leave_alone(std::move(layers));
}

uint64_t DeviceMac::keys_read(const DeviceRow& row) const {
  const auto all = static_cast<uint64_t>(row.position) + 1;
  if (inner_ == nullptr) return all;
  const auto fresh = static_cast<uint64_t>(settings_.cut.sink) +
                     static_cast<uint64_t>(settings_.cut.band + settings_.cut.align);
  const auto reused = static_cast<uint64_t>(settings_.max_gap);
  return std::min(all, fresh + std::max(inner_->keys_read(row), reused));
}

uint64_t DeviceMac::index_bytes_read(const DeviceRow& row) const {
  const uint64_t inner = inner_ != nullptr ? inner_->index_bytes_read(row) : 0;
  if (row.position < settings_.min_context) return inner;
  return inner + pool_->query_bytes();
}

}  // namespace reprise
