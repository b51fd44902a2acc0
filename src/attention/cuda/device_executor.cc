#include "attention/cuda/device_executor.h"

#include <algorithm>
#include <limits>

#include "base/try.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/page_table.h"

namespace reprise {

using namespace kernels::cuda;

/// Decode rows [first, first + count) over the keys of lists.
struct DeviceExecutor::Reading {
  KeyLists lists;
  uint32_t first, count;
  const __nv_bfloat16* q;  // [rows, n_head, head_dim] of the pass
  bool more;               // into the buffers that are merged
};

Result<std::unique_ptr<DeviceExecutor>> DeviceExecutor::create(
    const ModelConfig& config, std::span<const RopeTable* const> ropes, const PagedKv& kv,
    const Limits& limits) {
  std::unique_ptr<DeviceExecutor> executor(new DeviceExecutor(config));
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
  const uint32_t window = *std::max_element(config_.window.begin(), config_.window.end());
  if (window > 0) {
    list_capacity_ = window / kPageTokens + 2;
    const size_t entries = size_t{limits_.sequences} * list_capacity_;
    REPRISE_CHECK(list_pages_.reserve(entries, kWhat));
    REPRISE_CHECK(list_slots_.reserve(entries, kWhat));
    REPRISE_CHECK(list_keys_.reserve(limits_.sequences, kWhat));
  }
  const size_t heads = size_t{limits_.rows} * config_.n_head;
  REPRISE_CHECK(q_.reserve(heads * config_.head_dim, kWhat));
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

Status DeviceExecutor::set_policies(std::vector<DevicePolicy*> policies) {
  policies_ = std::move(policies);
  return policies_.empty() ? Status() : reserve_parts();
}

Status DeviceExecutor::begin(const DeviceRows& rows, cudaStream_t stream) {
  rows_ = rows;
  in_parts_ = std::any_of(rows.groups.begin(), rows.groups.end(),
                          [](const DeviceGroup& group) { return group.policy != nullptr; });
  for (const Rope& rope : ropes_) {
    REPRISE_CUDA(rotary_rows(rope.inv_freq.data(), rope.pairs, rope.factor, rows.positions,
                             rows.rows, rope.cos_sin.data(), stream),
                 "rotary angles");
  }
  REPRISE_CUDA(count_keys(rows.positions, rows.decode_rows, keys_.data(), 0, nullptr, stream),
               "counting keys");
  return {};
}

Status DeviceExecutor::reserve_parts() {
  constexpr std::string_view kWhat = "attention in parts";
  const size_t heads = size_t{limits_.rows} * config_.n_head, width = heads * config_.head_dim;
  REPRISE_CHECK(q_plain_.reserve(width, kWhat));
  REPRISE_CHECK(q_capped_.reserve(width, kWhat));
  REPRISE_CHECK(capped_.reserve(limits_.rows, kWhat));
  REPRISE_CHECK(capped_cos_sin_.reserve(size_t{limits_.rows} * config_.head_dim, kWhat));
  REPRISE_CHECK(part_out_.reserve(width, kWhat));
  REPRISE_CHECK(more_out_.reserve(width, kWhat));
  return more_lse_.reserve(heads, kWhat);
}

Status DeviceExecutor::attend(const LayerHeads& heads, cudaStream_t stream) {
  REPRISE_CHECK(store(heads, stream));
  const bool windowed = config_.window[heads.layer] > 0;
  if (!windowed) REPRISE_CHECK(tell_policies(heads.layer, stream));
  if (rows_.decode_rows > 0 && windowed) REPRISE_CHECK(read_window(heads, stream));
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
  args.pages = table(heads.layer);
  args.sequences = rows_.sequences;
  args.capacity = rows_.capacity;
  args.q_rotated = q_.data();
  args.q_plain = in_parts_ ? q_plain_.data() : nullptr;
  REPRISE_CUDA(rotate_and_store(args, stream), "storing keys and values");
  return {};
}

Status DeviceExecutor::tell_policies(uint32_t layer, cudaStream_t stream) {
  if (policies_.empty()) return {};
  DeviceStored stored;
  stored.layer = layer;
  stored.rows = rows_.rows;
  stored.positions = rows_.positions;
  stored.sequences = rows_.sequences;
  stored.pages = table(layer);
  stored.capacity = rows_.capacity;
  stored.kv = kv_;
  for (DevicePolicy* policy : policies_) REPRISE_CHECK(policy->after_store(stored, stream));
  return {};
}

Status DeviceExecutor::read(const LayerHeads& heads, const Reading& reading, cudaStream_t stream) {
  PagedDecodeArgs args;
  args.kv = kv_;
  args.lists = reading.lists;
  args.batch = reading.count;
  args.n_head = config_.n_head;
  args.q = reading.q + reading.first * q_width();
  args.scale = config_.attention_scale;
  args.soft_cap = config_.attention_soft_cap;
  args.out = (reading.more ? more_out_.data() : heads.decode_out) + reading.first * q_width();
  args.lse = (reading.more ? more_lse_.data() : lse_.data()) + reading.first * config_.n_head;
  args.workspace = decode_workspace_.data();
  REPRISE_CUDA(paged_decode(args, stream), "decode attention");
  return {};
}

Status DeviceExecutor::read_window(const LayerHeads& heads, cudaStream_t stream) {
  RangeLists lists;
  lists.table = table(heads.layer);
  lists.positions = rows_.positions;
  lists.count = rows_.decode_rows;
  lists.capacity = rows_.capacity;
  lists.window = static_cast<int32_t>(config_.window[heads.layer]);
  lists.pages = list_pages_.data();
  lists.slots = list_slots_.data();
  lists.keys = list_keys_.data();
  lists.list_capacity = list_capacity_;
  REPRISE_CUDA(range_lists(lists, stream), "choosing keys");
  const KeyLists keys = {list_pages_.data(), list_slots_.data(), list_keys_.data(), 1,
                         list_capacity_};
  return read(heads, {keys, 0, rows_.decode_rows, q_.data(), false}, stream);
}

Status DeviceExecutor::read_group(const LayerHeads& heads, const DeviceGroup& group,
                                  cudaStream_t stream) {
  const uint32_t* pages = table(heads.layer) + size_t{group.first} * rows_.capacity;
  const int32_t* keys = keys_.data() + group.first;
  if (group.policy == nullptr) {
    const KeyLists lists = {pages, nullptr, keys, 1, rows_.capacity};
    return read(heads, {lists, group.first, group.count, q_.data(), false}, stream);
  }
  DeviceQueries queries;
  queries.layer = heads.layer;
  queries.count = group.count;
  queries.n_head = config_.n_head;
  queries.positions = rows_.positions + group.first;
  queries.pages = pages;
  queries.capacity = rows_.capacity;
  queries.keys = keys;
  queries.q = q_.data() + group.first * q_width();
  queries.kv = kv_;
  parts_.clear();
  REPRISE_CHECK(group.policy->select(queries, parts_, stream));
  bool more = false;
  for (const DevicePart& part : parts_) {
    const bool capped = part.max_query_position != std::numeric_limits<int32_t>::max();
    if (capped) {
      REPRISE_CHECK(
          rotate_capped(heads.layer, group.first, group.count, part.max_query_position, stream));
    }
    const __nv_bfloat16* q = capped ? q_capped_.data() : q_.data();
    REPRISE_CHECK(read(heads, {part.lists, group.first, group.count, q, more}, stream));
    if (more) {
      REPRISE_CHECK(merge_more(heads.decode_out, group.first, group.count, stream));
    }
    more = true;
  }
  return {};
}

Status DeviceExecutor::merge_more(float* out, uint32_t first, uint32_t rows, cudaStream_t stream) {
  const size_t head = size_t{first} * config_.n_head;
  REPRISE_CUDA(merge_partials(out + head * config_.head_dim, lse_.data() + head,
                              more_out_.data() + head * config_.head_dim, more_lse_.data() + head,
                              rows * config_.n_head, config_.head_dim, stream),
               "merging parts");
  return {};
}

Status DeviceExecutor::rotate_capped(uint32_t layer, uint32_t first, uint32_t rows, int32_t cap,
                                     cudaStream_t stream) {
  const Rope& rope = ropes_[layer_rope_[layer]];
  REPRISE_CUDA(count_keys(rows_.positions + first, rows, nullptr, cap, capped_.data(), stream),
               "bounding positions");
  REPRISE_CUDA(rotary_rows(rope.inv_freq.data(), rope.pairs, rope.factor, capped_.data(), rows,
                           capped_cos_sin_.data(), stream),
               "rotary angles");
  HeadsArgs args;  // without keys and values
  args.q = q_plain_.data() + first * q_width();
  args.rows = rows;
  args.n_head = config_.n_head;
  args.pairs = rope.pairs;
  args.cos_sin = capped_cos_sin_.data();
  args.kv.head_dim = config_.head_dim;
  args.q_rotated = q_capped_.data() + first * q_width();
  REPRISE_CUDA(rotate_and_store(args, stream), "rotating queries");
  return {};
}

PagedPrefillArgs DeviceExecutor::prefill_args(const LayerHeads& heads, uint32_t step,
                                              uint32_t steps, uint32_t rows) const {
  PagedPrefillArgs args;
  args.kv = kv_;
  args.sequences = rows_.prefill + (step - rows_.decode_rows);
  args.pages = table(heads.layer) + size_t{step} * rows_.capacity;
  args.batch = steps;
  args.capacity = rows_.capacity;
  args.n_head = config_.n_head;
  args.rows = rows;
  args.q = q_.data() + rows_.decode_rows * q_width();  // sequences name rows from here on
  args.scale = config_.attention_scale;
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
  const uint32_t row = rows_.decode_rows + own.first, rows = own.count;
  const auto parts =
      policy != nullptr ? policy->prefill_parts(own.position) : std::vector<PrefillPart>();
  if (parts.empty()) return prefill(heads, step, 1, rows, stream);
  const size_t skipped = size_t{rows_.decode_rows} * q_width();
  float* out = part_out_.data() + skipped;
  bool more = false;
  for (const PrefillPart& part : parts) {
    PagedPrefillArgs args = prefill_args(heads, step, 1, rows);
    if (part.max_query_position != std::numeric_limits<int32_t>::max()) {
      REPRISE_CHECK(rotate_capped(heads.layer, row, rows, part.max_query_position, stream));
      args.q = q_capped_.data() + skipped;
    }
    args.window = part.window;
    args.first_key = part.first_key;
    args.end_key = part.end_key;
    args.f32_out = true;
    args.out = more ? more_out_.data() + skipped : out;
    if (more) args.lse = more_lse_.data() + size_t{rows_.decode_rows} * config_.n_head;
    REPRISE_CUDA(paged_prefill(args, stream), "prefill attention");
    if (more) REPRISE_CHECK(merge_more(part_out_.data(), row, rows, stream));
    more = true;
  }
  const size_t first = row * q_width();
  REPRISE_CUDA(round_to_bf16(part_out_.data() + first, rows * q_width(),
                             heads.prefill_out + (first - skipped), stream),
               "prefill attention");
  return {};
}

}  // namespace reprise
