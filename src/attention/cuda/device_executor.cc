#include "attention/cuda/device_executor.h"

#include <algorithm>
#include <limits>

#include "base/try.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/page_table.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr int32_t kNoCap = std::numeric_limits<int32_t>::max();

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
  for (const RopeTable* table : ropes) {
    auto known = std::find_if(ropes_.begin(), ropes_.end(),
                              [&](const Rope& rope) { return rope.table == table; });
    layer_rope_.push_back(static_cast<uint32_t>(known - ropes_.begin()));
    if (known == ropes_.end()) REPRISE_CHECK(add_rope(*table));
  }
  constexpr uint32_t kAnyCapacity = std::numeric_limits<uint32_t>::max();
  if (has_windows_) REPRISE_CHECK(windows_.reserve(limits_.sequences, kAnyCapacity));
  const size_t heads = size_t{limits_.rows} * config_.n_head;
  REPRISE_CHECK(q_.reserve(heads * config_.head_dim, kWhat));
  REPRISE_CHECK(q_exact_.reserve(limits_.sequences * q_width(), kWhat));
  REPRISE_CHECK(lse_.reserve(heads, kWhat));
  REPRISE_CHECK(keys_.reserve(limits_.sequences, kWhat));
  REPRISE_CHECK(
      decode_workspace_.reserve(paged_decode_workspace(limits_.sequences, config_.n_head,
                                                       config_.n_kv_head, config_.head_dim),
                                kWhat));
  return prefill_workspace_.reserve(kPagedPrefillWorkspace, kWhat);
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
  if (any(&DevicePolicy::attends)) {
    REPRISE_CHECK(q_plain_.reserve(limits_.rows * q_width(), "plain queries"));
  }
  if (any(&DevicePolicy::position_free)) REPRISE_CHECK(reserve_position_free(capacity));
  return policies_.empty() ? Status() : reserve_parts();
}

Status DeviceExecutor::reserve_position_free(uint32_t capacity) {
  std::vector<const RopeTable*> tables;
  for (Rope& rope : ropes_) {
    tables.push_back(rope.table);
    REPRISE_CHECK(rope.cos_sin_keys.reserve(rope.cos_sin.size(), "rotary angles"));
  }
  return position_free_.reserve(tables, kv_, capacity);
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
  in_parts_ = std::any_of(rows.groups.begin(), rows.groups.end(),
                          [](const DeviceGroup& group) { return group.policy != nullptr; });
  REPRISE_CHECK(make_angles(stream));
  REPRISE_CUDA(count_keys(rows.positions, rows.decode_rows, keys_.data(), stream), "counting keys");
  if (has_windows_) REPRISE_CHECK(windows_.list(rows, stream));
  for (DevicePolicy* policy : policies_) REPRISE_CHECK(policy->begin(rows, kv_, stream));
  return {};
}

Status DeviceExecutor::make_angles(cudaStream_t stream) {
  for (Rope& rope : ropes_) {
    REPRISE_CHECK(fill_angles(rope, {0, rows_.rows}, kNoCap, rope.factor, rope.cos_sin, stream));
  }
  REPRISE_CHECK(make_capped_angles(stream));
  return make_key_angles(stream);
}

Status DeviceExecutor::make_capped_angles(cudaStream_t stream) {
  capped_ = false;
  for (const DeviceGroup& group : rows_.groups) {
    const int32_t cap = group.policy != nullptr ? group.policy->max_query_position() : kNoCap;
    if (cap == kNoCap) continue;
    capped_ = true;
    for (Rope& rope : ropes_) {
      REPRISE_CHECK(
          fill_angles(rope, rows_of(group), cap, rope.factor, rope.cos_sin_capped, stream));
    }
  }
  return {};
}

Status DeviceExecutor::make_key_angles(cudaStream_t stream) {
  const auto is_free = [](const DeviceGroup& group) {
    return group.policy != nullptr && group.policy->position_free();
  };
  keys_apart_ = std::any_of(rows_.groups.begin(), rows_.groups.end(), is_free);
  for (Rope& rope : ropes_) {
    if (!keys_apart_) break;
    DeviceBuffer<float>& angles = rope.cos_sin_keys;
    REPRISE_CHECK(fill_angles(rope, {0, rows_.rows}, kNoCap, rope.factor, angles, stream));
    for (const DeviceGroup& group : rows_.groups) {
      if (is_free(group)) {
        REPRISE_CHECK(fill_angles(rope, rows_of(group), 0, 1.0f, angles, stream));
      }
    }
  }
  return {};
}

DeviceExecutor::RowRange DeviceExecutor::rows_of(const DeviceGroup& group) const {
  if (group.first < rows_.decode_rows) return {group.first, group.count};
  const PrefillRows* steps = &rows_.host_prefill[group.first - rows_.decode_rows];
  const PrefillRows& last = steps[group.count - 1];
  return {rows_.decode_rows + steps->first, last.first + last.count - steps->first};
}

Status DeviceExecutor::fill_angles(const Rope& rope, RowRange rows, int32_t cap, float factor,
                                   DeviceBuffer<float>& angles, cudaStream_t stream) const {
  REPRISE_CUDA(
      rotary_rows(rope.inv_freq.data(), rope.pairs, factor, rows_.positions + rows.first,
                  rows.count, cap, angles.data() + size_t{rows.first} * rope.pairs * 2, stream),
      "rotary angles");
  return {};
}

Status DeviceExecutor::attend(const LayerHeads& heads, cudaStream_t stream) {
  REPRISE_CHECK(memory_.await(heads.layer));
  REPRISE_CHECK(store(heads, stream));
  const bool windowed = config_.window[heads.layer] > 0;
  if (rows_.prefill_steps > 0 && !windowed) {
    for (DevicePolicy* policy : policies_) {
      REPRISE_CHECK(policy->after_prefill_store(rows_, heads.layer, kv_, stream));
    }
  }
  if (rows_.decode_rows > 0 && windowed) {
    REPRISE_CHECK(read(heads, {windows_.lists(heads.layer, 0)}, 0, rows_.decode_rows, stream));
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
  const Rope& rope = ropes_[layer_rope_[heads.layer]];
  HeadsArgs args;
  args.q = heads.q;
  args.k = heads.k;
  args.v = heads.v;
  args.rows = rows_.rows;
  args.n_head = config_.n_head;
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
  args.exact_rows = rows_.decode_rows;
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
  if (what.rotate) args.angles = position_free_.angles(layer_rope_[heads.layer]);
  args.batch = count;
  args.n_head = config_.n_head;
  args.q = q_exact_.data() + at;
  args.q_capped = q_capped_exact_.data() + at;
  args.capped_pages = what.capped_pages;
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.out = heads.decode_out + at;
  args.lse = lse_.data() + head;
  args.workspace = decode_workspace_.data();
  REPRISE_CUDA(paged_decode(args, stream), "decode attention");
  return {};
}

Status DeviceExecutor::read_group(const LayerHeads& heads, const DeviceGroup& group,
                                  cudaStream_t stream) {
  const uint32_t* pages = rows_.table(heads.layer) + size_t{group.first} * rows_.capacity;
  DeviceRead what = {{pages, nullptr, keys_.data() + group.first, 1, rows_.capacity}};
  what.rotate = group.policy != nullptr && group.policy->position_free();
  if (group.policy != nullptr && !group.policy->leaves_alone(heads.layer)) {
    DeviceQueries queries;
    queries.layer = heads.layer;
    queries.n_head = config_.n_head;
    queries.first = group.first;
    queries.count = group.count;
    queries.positions = rows_.positions + group.first;
    queries.pages = pages;
    queries.capacity = rows_.capacity;
    queries.q = q_.data() + group.first * q_width();
    queries.kv = kv_;
    if (group.policy->attends()) {
      const size_t head = size_t{group.first} * config_.n_head, at = group.first * q_width();
      queries.q_exact = q_exact_.data() + at;
      queries.q_plain = plain_queries(heads) + at;
      return group.policy->attend(queries, {heads.decode_out + at, lse_.data() + head}, stream);
    }
    REPRISE_CHECK(group.policy->select(queries, what, stream));
  }
  return read(heads, what, group.first, group.count, stream);
}

Status DeviceExecutor::merge_more(float* out, uint32_t first, uint32_t rows, cudaStream_t stream) {
  const size_t head = size_t{first} * config_.n_head;
  REPRISE_CUDA(merge_partials(out + head * config_.head_dim, lse_.data() + head,
                              more_out_.data() + head * config_.head_dim, more_lse_.data() + head,
                              rows * config_.n_head, config_.head_dim, stream),
               "merging parts");
  return {};
}

PagedPrefillArgs DeviceExecutor::prefill_args(const LayerHeads& heads, uint32_t step,
                                              uint32_t steps, uint32_t rows) const {
  PagedPrefillArgs args;
  args.kv = kv_;
  args.sequences = rows_.prefill + (step - rows_.decode_rows);
  args.pages = rows_.table(heads.layer) + size_t{step} * rows_.capacity;
  args.batch = steps;
  args.capacity = rows_.capacity;
  args.n_head = config_.n_head;
  args.rows = rows;
  args.q = q_.data() + rows_.decode_rows * q_width();  // sequences name rows from here on
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.window = static_cast<int32_t>(config_.window[heads.layer]);
  args.out = heads.prefill_out;
  args.lse = lse_.data() + size_t{rows_.decode_rows} * config_.n_head;
  args.workspace = prefill_workspace_.data();
  return args;
}

Status DeviceExecutor::prefill(const LayerHeads& heads, uint32_t step, uint32_t steps,
                               uint32_t rows, cudaStream_t stream) {
  REPRISE_CUDA(paged_prefill(prefill_args(heads, step, steps, rows), stream), "prefill attention");
  return {};
}

Status DeviceExecutor::prefill_step(const LayerHeads& heads, uint32_t step, DevicePolicy* policy,
                                    cudaStream_t stream) {
  const PrefillRows& own = rows_.host_prefill[step - rows_.decode_rows];
  if (policy != nullptr && policy->position_free()) {
    return prefill_position_free(heads, step, stream);
  }
  if (policy == nullptr || policy->leaves_alone(heads.layer)) {
    return prefill(heads, step, 1, own.count, stream);
  }
  const auto parts = policy->prefill_parts(heads.layer, step, own.position);
  if (parts.empty()) {
    REPRISE_CHECK(prefill(heads, step, 1, own.count, stream));
  } else {
    REPRISE_CHECK(read_prefill_parts(heads, step, parts, stream));
  }
  const size_t row = rows_.decode_rows + own.first;
  DevicePrompt prompt;
  prompt.layer = heads.layer;
  prompt.step = step;
  prompt.rows = own;
  prompt.pages = rows_.table(heads.layer) + size_t{step} * rows_.capacity;
  prompt.q = q_.data() + row * q_width();
  prompt.q_plain = plain_queries(heads) + row * q_width();
  prompt.lse = lse_.data() + row * config_.n_head;
  prompt.kv = kv_;
  return policy->after_prefill(prompt, stream);
}

Status DeviceExecutor::prefill_position_free(const LayerHeads& heads, uint32_t step,
                                             cudaStream_t stream) {
  const PrefillRows& own = rows_.host_prefill[step - rows_.decode_rows];
  PagedPrefillArgs args = prefill_args(heads, step, 1, own.count);
  const uint32_t keys = static_cast<uint32_t>(own.position) + own.count;
  REPRISE_CHECK(position_free_.rotate(kv_, args.pages, keys, layer_rope_[heads.layer], stream));
  args.kv = position_free_.copies();
  args.pages = position_free_.pages();
  REPRISE_CUDA(paged_prefill(args, stream), "prefill attention");
  return {};
}

Status DeviceExecutor::read_prefill_parts(const LayerHeads& heads, uint32_t step,
                                          std::span<const PrefillPart> parts, cudaStream_t stream) {
  const PrefillRows& own = rows_.host_prefill[step - rows_.decode_rows];
  const uint32_t row = rows_.decode_rows + own.first;
  const size_t skipped = size_t{rows_.decode_rows} * q_width();
  bool more = false;
  for (const PrefillPart& part : parts) {
    PagedPrefillArgs args = prefill_args(heads, step, 1, own.count);
    if (part.pages != nullptr) args.pages = part.pages;
    if (part.capped) args.q = q_capped_.data() + skipped;
    args.window = part.window;
    args.first_key = part.first_key;
    args.end_key = part.end_key;
    args.f32_out = true;
    args.out = (more ? more_out_.data() : part_out_.data()) + skipped;
    if (more) args.lse = more_lse_.data() + size_t{rows_.decode_rows} * config_.n_head;
    REPRISE_CUDA(paged_prefill(args, stream), "prefill attention");
    if (more) REPRISE_CHECK(merge_more(part_out_.data(), row, own.count, stream));
    more = true;
  }
  const size_t first = row * q_width();
  REPRISE_CUDA(round_to_bf16(part_out_.data() + first, own.count * q_width(),
                             heads.prefill_out + (first - skipped), stream),
               "prefill attention");
  return {};
}

}  // namespace reprise
