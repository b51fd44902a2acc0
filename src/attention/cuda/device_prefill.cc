// The part of the executor that reads for rows of prompts.
#include <algorithm>
#include <limits>

#include "attention/cuda/device_executor.h"
#include "base/try.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/page_table.h"

namespace reprise {

using namespace kernels::cuda;

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
  if (rows_.scattered) args.positions = rows_.positions + rows_.decode_rows;
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.window = static_cast<int32_t>(config_.window[heads.layer]);
  args.out = heads.prefill_out;
  args.lse = own_lse_ + size_t{rows_.decode_rows} * config_.n_head;
  args.workspace = prefill_workspace_.data();
  if (!rows_.scattered) name_extent(step, steps, args);
  return args;
}

/// Of rows at consecutive positions.
void DeviceExecutor::name_extent(uint32_t step, uint32_t steps, PagedPrefillArgs& args) const {
  uint32_t first = std::numeric_limits<uint32_t>::max(), end = 0;
  args.keys = 0;
  for (const PrefillRows& own : rows_.host_prefill.subspan(step - rows_.decode_rows, steps)) {
    first = std::min(first, own.first);
    end = std::max(end, own.first + own.count);
    uint32_t keys = static_cast<uint32_t>(own.position) + own.count;
    if (args.window > 0) keys = std::min(keys, static_cast<uint32_t>(args.window) + own.count);
    args.keys = std::max(args.keys, keys);
  }
  args.first_row = std::min(first, end);
  args.rows = end - args.first_row;
}

Status DeviceExecutor::prefill(const LayerHeads& heads, uint32_t step, uint32_t steps,
                               uint32_t rows, cudaStream_t stream) {
  PagedPrefillArgs args = prefill_args(heads, step, steps, rows);
  const bool far = rows_.far_pages && args.window == 0;
  if (steps == 1 && far) REPRISE_CHECK(bring_pages(step, args, stream));
  if (const UnrotatedRows& own = rows_.unrotated; own.keys != nullptr) {
    const PositionFreeKeys::Source source = {args.pages, own.end, nullptr, nullptr, own.first_page};
    REPRISE_CHECK(read_copies(*own.keys, source, heads.layer, args, stream));
  }
  REPRISE_CUDA(paged_prefill(args, stream), "prefill attention");
  return {};
}

Status DeviceExecutor::read_tables(const LayerHeads& heads, const PrefillTables& tables,
                                   cudaStream_t stream) {
  PagedPrefillArgs args = prefill_args(heads, 0, tables.batch, rows_.rows);
  args.sequences = tables.sequences;
  args.positions = tables.positions;
  args.pages = tables.pages;
  args.capacity = tables.capacity;
  REPRISE_CUDA(paged_prefill(args, stream), "prefill attention");
  return {};
}

Status DeviceExecutor::prefill_step(const LayerHeads& heads, uint32_t step, DevicePolicy* policy,
                                    cudaStream_t stream) {
  const PrefillRows& own = rows_.host_prefill[step - rows_.decode_rows];
  if (policy != nullptr && policy->position_free()) {
    return prefill_position_free(heads, step, *policy, stream);
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
  return policy->after_prefill(prompt_of(heads, step), stream);
}

DevicePrompt DeviceExecutor::prompt_of(const LayerHeads& heads, uint32_t step) const {
  const PrefillRows& own = rows_.host_prefill[step - rows_.decode_rows];
  const size_t row = rows_.decode_rows + own.first;
  DevicePrompt prompt;
  prompt.layer = heads.layer;
  prompt.step = step;
  prompt.rows = own;
  prompt.positions = rows_.positions + row;
  prompt.pages = rows_.table(heads.layer) + size_t{step} * rows_.capacity;
  prompt.capacity = rows_.capacity;
  prompt.q = q_.data() + row * q_width();
  prompt.q_plain = plain_queries(heads) + row * q_width();
  prompt.lse = own_lse_ + row * config_.n_head;
  prompt.kv = kv_;
  return prompt;
}

Status DeviceExecutor::prefill_position_free(const LayerHeads& heads, uint32_t step,
                                             DevicePolicy& policy, cudaStream_t stream) {
  const PrefillRows& own = rows_.host_prefill[step - rows_.decode_rows];
  PackedPrompt packed;
  if (policy.packs() && !policy.leaves_alone(heads.layer)) {
    DevicePrompt prompt = prompt_of(heads, step);
    prompt.angles = position_free_.positions(layer_rope_[heads.layer]);
    REPRISE_CHECK(policy.pack(prompt, packed, stream));
  }
  PagedPrefillArgs args = prefill_args(heads, step, 1, own.count);
  PositionFreeKeys::Source source = {args.pages, static_cast<uint32_t>(own.position) + own.count};
  if (packed.tokens != nullptr) {
    source = {args.pages, packed.most_keys, packed.tokens, packed.keys};
    const size_t first = own.first * q_width();
    args.sequences = packed.rows;
    args.first_row = 0;
    args.keys = packed.most_keys;
    args.q = packed.q;
    args.out = heads.prefill_out + first;
    args.lse += size_t{own.first} * config_.n_head;
  }
  REPRISE_CHECK(read_copies(position_free_, source, heads.layer, args, stream));
  REPRISE_CUDA(paged_prefill(args, stream), "prefill attention");
  return {};
}

/// Lets rows read copies of pages in which keys are rotated.
Status DeviceExecutor::read_copies(const PositionFreeKeys& keys,
                                   const PositionFreeKeys::Source& source, uint32_t layer,
                                   PagedPrefillArgs& args, cudaStream_t stream) const {
  REPRISE_CHECK(rotate(keys, source, layer, stream));
  args.kv = keys.copies();
  args.pages = keys.pages();
  return {};
}

Status DeviceExecutor::merge_more(float* out, uint32_t first, uint32_t rows, cudaStream_t stream) {
  const size_t head = size_t{first} * config_.n_head;
  REPRISE_CUDA(merge_partials(out + head * config_.head_dim, own_lse_ + head,
                              more_out_.data() + head * config_.head_dim, more_lse_.data() + head,
                              rows * config_.n_head, config_.head_dim, stream),
               "merging parts");
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
