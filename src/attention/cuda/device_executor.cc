#include "attention/cuda/device_executor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/try.h"
#include "kernels/cuda/float_attention.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/page_table.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr uint32_t kTokens = kernels::cuda::kPageTokens;

}  // namespace

DeviceExecutor::DeviceExecutor(const ModelConfig& config, DevicePageMemory& memory)
    : config_(config),
      memory_(memory),
      windows_({config.window.begin(), config.window.end()}, 0),
      has_windows_(std::any_of(config.window.begin(), config.window.end(),
                               [](uint32_t window) { return window > 0; })) {}

Result<std::unique_ptr<DeviceExecutor>> DeviceExecutor::create(
    const ModelConfig& config, std::span<const RopeTable* const> ropes, const PagedKv& kv,
    DevicePageMemory& memory, const Limits& limits) {
  std::unique_ptr<DeviceExecutor> executor(new DeviceExecutor(config, memory));
  executor->kv_ = kv;
  executor->limits_ = limits;
  REPRISE_CHECK(executor->reserve(ropes));
  return executor;
}

Status DeviceExecutor::reserve(std::span<const RopeTable* const> ropes) {
  constexpr std::string_view kWhat = "attention";
  REPRISE_TRY(learn_stream_, CudaStream::create());
  REPRISE_TRY(attended_, CudaEvent::create());
  REPRISE_TRY(learned_, CudaEvent::create());
  for (const RopeTable* table : ropes) {
    auto known = std::find_if(ropes_.begin(), ropes_.end(),
                              [&](const Rope& rope) { return rope.table == table; });
    layer_rope_.push_back(static_cast<uint32_t>(known - ropes_.begin()));
    if (known == ropes_.end()) REPRISE_CHECK(add_rope(*table));
  }
  constexpr uint32_t kAnyCapacity = std::numeric_limits<uint32_t>::max();
  if (has_windows_) REPRISE_CHECK(windows_.reserve(limits_.sequences, kAnyCapacity));
  const size_t heads = size_t{limits_.rows} * config_.n_head;
  const size_t kept = size_t{config_.n_layer} * limits_.sequences * config_.n_head;
  if (in_float()) return q_exact_.reserve(heads * config_.head_dim, kWhat);
  REPRISE_CHECK(q_.reserve(heads * config_.head_dim, kWhat));
  REPRISE_CHECK(q_exact_.reserve(limits_.sequences * q_width(), kWhat));
  REPRISE_CHECK(lse_.reserve(heads + kept, kWhat));
  REPRISE_CHECK(keys_.reserve(limits_.sequences, kWhat));
  REPRISE_CHECK(
      decode_workspace_.reserve(paged_decode_workspace(limits_.sequences, config_.n_head,
                                                       config_.n_kv_head, config_.head_dim),
                                kWhat));
  return prefill_workspace_.reserve(paged_prefill_workspace(config_.head_dim), kWhat);
}

Status DeviceExecutor::add_rope(const RopeTable& table) {
  Rope& rope = ropes_.emplace_back();
  rope.table = &table;
  rope.pairs = static_cast<uint32_t>(table.pairs());
  rope.factor = table.attention_factor();
  REPRISE_CHECK(upload(std::span(table.inv_freq()), rope.inv_freq, "rotary frequencies"));
  return rope.cos_sin.reserve(size_t{limits_.rows} * rope.pairs * 2, "rotary angles");
}

Status DeviceExecutor::set_policies(std::vector<DevicePolicy*> policies, uint32_t capacity) {
  policies_ = std::move(policies);
  const auto any = [&](bool (DevicePolicy::*has)() const) {
    return std::any_of(policies_.begin(), policies_.end(),
                       [&](const DevicePolicy* policy) { return (policy->*has)(); });
  };
  if (any(&DevicePolicy::reads_plain_queries)) {
    REPRISE_CHECK(q_plain_.reserve(limits_.rows * q_width(), "plain queries"));
  }
  if (any(&DevicePolicy::position_free)) REPRISE_CHECK(reserve_position_free(capacity));
  if (memory_.hot() != nullptr) REPRISE_CHECK(memory_.hot()->reserve(limits_.sequences, capacity));
  if (memory_.has_host_pages()) REPRISE_CHECK(reserve_copies(capacity));
  return policies_.empty() ? Status() : reserve_parts();
}

Status DeviceExecutor::reserve_position_free(uint32_t capacity) {
  uint64_t most = 0, packed = 0;  // keys that are rotated for a row
  for (const DevicePolicy* policy : policies_) {
    if (!policy->position_free()) continue;
    const uint64_t all = uint64_t{capacity} * kTokens;
    const uint64_t own = std::min<uint64_t>(policy->most_rotated_keys(), all);
    most = std::max(most, policy->leaves_any_alone() ? all : own);
    if (policy->packs()) packed = std::max(packed, own);
  }
  const auto pages = static_cast<uint32_t>((most + kTokens - 1) / kTokens);
  return reserve(position_free_, pages, static_cast<uint32_t>(packed));
}

Status DeviceExecutor::reserve(PositionFreeKeys& keys, uint32_t pages, uint32_t packed) {
  std::vector<const RopeTable*> tables;
  for (Rope& rope : ropes_) {
    tables.push_back(rope.table);
    REPRISE_CHECK(rope.cos_sin_keys.reserve(rope.cos_sin.size(), "rotary angles"));
  }
  return keys.reserve(tables, kv_, pages, packed);
}

Status DeviceExecutor::reserve(PositionFreeKeys& keys, uint32_t pages) {
  return pages <= keys.capacity() ? Status() : reserve(keys, pages, 0);
}

Status DeviceExecutor::reserve_parts() {
  constexpr std::string_view kWhat = "attention in parts";
  const size_t heads = size_t{limits_.rows} * config_.n_head, width = heads * config_.head_dim;
  REPRISE_CHECK(q_capped_.reserve(width, kWhat));
  REPRISE_CHECK(q_capped_exact_.reserve(limits_.sequences * q_width(), kWhat));
  for (Rope& rope : ropes_) {
    REPRISE_CHECK(rope.cos_sin_capped.reserve(rope.cos_sin.size(), kWhat));
  }
  REPRISE_CHECK(part_out_.reserve(width, kWhat));
  REPRISE_CHECK(more_out_.reserve(width, kWhat));
  return more_lse_.reserve(heads, kWhat);
}

Status DeviceExecutor::begin(const DeviceRows& rows, cudaStream_t stream) {
  rows_ = rows;
  learning_ = false;
  in_parts_ = std::any_of(rows.groups.begin(), rows.groups.end(),
                          [](const DeviceGroup& group) { return group.policy != nullptr; });
  REPRISE_CHECK(make_angles(stream));
  if (in_float()) return {};
  REPRISE_CUDA(count_keys(rows.positions, rows.decode_rows, keys_.data(), stream), "counting keys");
  if (has_windows_) REPRISE_CHECK(windows_.list(rows, stream));
  if (memory_.hot() != nullptr) {
    REPRISE_CHECK(memory_.hot()->begin(
        {rows.positions, rows.sequences, rows.rows, rows.tables, rows.table_rows, rows.capacity},
        stream));
  }
  for (DevicePolicy* policy : policies_) {
    if (!rows.scattered) REPRISE_CHECK(policy->begin(rows, kv_, stream));
  }
  return find_early_pages(stream);
}

Status DeviceExecutor::attend(const LayerHeads& heads, cudaStream_t stream) {
  REPRISE_CHECK(attend_rows(heads, stream));
  REPRISE_CHECK(expect_next_token(heads.layer + 1, stream));
  return learn(heads.layer + 1, stream);
}

Status DeviceExecutor::follow(cudaStream_t stream) {
  learning_ = true;
  REPRISE_CHECK(attended_.record(stream));
  return attended_.hold(learn_stream_.get());
}

Status DeviceExecutor::learn(uint32_t end, cudaStream_t stream) {
  for (const DeviceGroup& group : rows_.groups) {
    const bool decodes = group.policy != nullptr && group.first < rows_.decode_rows;
    if (!decodes || !group.policy->learns() || expects_token(group)) continue;
    const uint32_t together = group.policy->layers_learned_together();
    if (end % together != 0 && end != config_.n_layer) continue;
    const uint32_t first = (end - 1) / together * together;
    REPRISE_CHECK(follow(stream));
    REPRISE_CHECK(group.policy->learn(read_of(first, group), end - first, learn_stream_.get()));
  }
  return {};
}

Status DeviceExecutor::attend_rows(const LayerHeads& heads, cudaStream_t stream) {
  if (memory_.hot() != nullptr && brings_next_layer(limits_.prefetch)) {
    REPRISE_CHECK(memory_.hot()->join(stream));  // queries are used meanwhile, too
  }
  REPRISE_CHECK(store(heads, stream));
  if (in_float()) return read_in_float(heads, stream);
  const bool windowed = config_.window[heads.layer] > 0;
  if (rows_.prefill_steps > 0 && !windowed && !rows_.scattered) {
    for (DevicePolicy* policy : policies_) {
      REPRISE_CHECK(policy->after_prefill_store(rows_, heads.layer, kv_, stream));
    }
  }
  if (rows_.decode_rows > 0 && windowed) {
    DeviceRead recent = {windows_.lists(heads.layer, 0)};
    recent.known = true;
    REPRISE_CHECK(read(heads, recent, 0, rows_.decode_rows, stream));
  }
  if (rows_.prefill_steps > 0 && (windowed || !in_parts_)) {
    REPRISE_CHECK(prefill(heads, rows_.decode_rows, rows_.prefill_steps,
                          rows_.rows - rows_.decode_rows, stream));
  }
  if (windowed) return {};
  for (const DeviceGroup& group : rows_.groups) {
    if (group.first < rows_.decode_rows) {
      REPRISE_CHECK(read_group(heads, group, stream));
      continue;
    }
    for (uint32_t i = 0; in_parts_ && i < group.count; ++i) {
      REPRISE_CHECK(prefill_step(heads, group.first + i, group.policy, stream));
    }
  }
  return {};
}

Status DeviceExecutor::store(const LayerHeads& heads, cudaStream_t stream) {
  REPRISE_CHECK(memory_.await(heads.layer));
  const size_t kept = in_float() ? 0 : size_t{heads.layer} * limits_.sequences;
  own_lse_ = lse_.data() + kept * config_.n_head;
  const Rope& rope = ropes_[layer_rope_[heads.layer]];
  HeadsArgs args;
  args.q = heads.q;
  args.k = heads.k;
  args.v = heads.v;
  args.rows = rows_.rows;
  args.n_head = heads.q != nullptr ? config_.n_head : 0;
  args.pairs = rope.pairs;
  args.q_norm = heads.q_norm;
  args.k_norm = heads.k_norm;
  args.norm_eps = config_.norm_eps;
  args.cos_sin = rope.cos_sin.data();
  args.positions = rows_.positions;
  args.kv = kv_;
  args.pages = rows_.table(heads.layer);
  args.sequences = rows_.sequences;
  args.capacity = rows_.capacity;
  args.q_scale = config_.attention_scale / kQueryUnit;
  args.exact_rows = in_float() ? rows_.rows : rows_.decode_rows;
  args.q_rotated = {q_.data(), q_exact_.data()};
  if (keys_apart_) args.cos_sin_keys = rope.cos_sin_keys.data();
  if (heads.q_norm != nullptr) args.q_plain = q_plain_.data();
  if (capped_) {
    args.cos_sin_capped = rope.cos_sin_capped.data();
    args.q_capped = {q_capped_.data(), q_capped_exact_.data()};
  }
  REPRISE_CUDA(rotate_and_store(args, stream), "storing keys and values");
  return {};
}

Status DeviceExecutor::read(const LayerHeads& heads, const DeviceRead& what, uint32_t first,
                            uint32_t count, cudaStream_t stream) {
  const size_t head = size_t{first} * config_.n_head, at = head * config_.head_dim;
  PagedDecodeArgs args;
  args.kv = kv_;
  args.lists = what.lists;
  const uint32_t rope = layer_rope_[heads.layer];
  if (what.rotate) {
    const PositionFreeKeys& keys =
        rows_.unrotated.keys != nullptr ? *rows_.unrotated.keys : position_free_;
    args.angles =
        what.angle_rows == nullptr ? keys.angles(rope) : keys.packed_angles(rope, what.angle_rows);
  }
  args.batch = count;
  args.n_head = config_.n_head;
  args.q = what.q != nullptr ? what.q : q_exact_.data() + at;
  args.q_capped = q_capped_exact_.data() + at;
  args.capped_pages = what.capped_pages;
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.out = heads.decode_out + at;
  args.lse = own_lse_ + head;
  args.workspace = decode_workspace_.data();
  args.known_pages = what.known;
  args.page_logs = what.page_logs;
  args.page_peaks = what.page_peaks;
  REPRISE_CUDA(paged_decode(args, stream), "decode attention");
  return {};
}

Status DeviceExecutor::read_in_float(const LayerHeads& heads, cudaStream_t stream) {
  FloatAttentionArgs args;
  args.kv = kv_;
  args.pages = rows_.table(heads.layer);
  args.capacity = rows_.capacity;
  args.sequences = rows_.sequences;
  args.positions = rows_.positions;
  args.rows = rows_.rows;
  args.n_head = config_.n_head;
  args.q = q_exact_.data();
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.window = static_cast<int32_t>(config_.window[heads.layer]);
  args.out = heads.decode_out;
  REPRISE_CUDA(float_attention(args, stream), "attention");
  return {};
}

DeviceQueries DeviceExecutor::queries_of(uint32_t layer, const DeviceGroup& group) const {
  DeviceQueries queries;
  queries.layer = layer;
  queries.n_head = config_.n_head;
  queries.first = group.first;
  queries.count = group.count;
  queries.positions = rows_.positions + group.first;
  queries.keys = keys_.data() + group.first;
  queries.pages = rows_.table(layer) + size_t{group.first} * rows_.capacity;
  queries.page_stride = size_t{rows_.table_rows} * rows_.capacity;
  queries.capacity = rows_.capacity;
  queries.layer_rows = limits_.sequences;
  queries.q = q_.data() + group.first * q_width();
  queries.kv = kv_;
  return queries;
}

DeviceQueries DeviceExecutor::read_of(uint32_t layer, const DeviceGroup& group) const {
  DeviceQueries queries = queries_of(layer, group);
  queries.lse = lse_.data() + (size_t{layer} * limits_.sequences + group.first) * config_.n_head;
  return queries;
}

DeviceQueries DeviceExecutor::queries_of(const LayerHeads& heads, const DeviceGroup& group) const {
  const size_t at = group.first * q_width();
  DeviceQueries queries = queries_of(heads.layer, group);
  if (group.policy->reads_plain_queries()) queries.q_plain = plain_queries(heads) + at;
  if (group.policy->packs()) queries.angles = position_free_.positions(layer_rope_[heads.layer]);
  if (group.policy->attends()) queries.q_exact = q_exact_.data() + at;
  return queries;
}

Status DeviceExecutor::read_group(const LayerHeads& heads, const DeviceGroup& group,
                                  cudaStream_t stream) {
  const uint32_t* pages = rows_.table(heads.layer) + size_t{group.first} * rows_.capacity;
  DeviceRead what = {{pages, nullptr, keys_.data() + group.first, 1, rows_.capacity}};
  what.rotate =
      group.policy != nullptr ? group.policy->position_free() : rows_.unrotated.keys != nullptr;
  what.known = group.policy == nullptr || group.policy->leaves_alone(heads.layer);
  if (group.policy != nullptr && !group.policy->leaves_alone(heads.layer)) {
    const DeviceQueries queries = queries_of(heads, group);
    const size_t head = size_t{group.first} * config_.n_head, at = group.first * q_width();
    if (group.policy->attends()) {
      return group.policy->attend(queries, {heads.decode_out + at, own_lse_ + head}, stream);
    }
    REPRISE_CHECK(group.policy->select(queries, what, stream));
    if (has_hot_pages(group, heads.layer)) {
      REPRISE_CHECK(find_hot_pages(group, queries, what, stream));
    }
  }
  return read(heads, what, group.first, group.count, stream);
}

}  // namespace reprise
