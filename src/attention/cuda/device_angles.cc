// The part of the executor that prepares rotations.
#include <algorithm>
#include <limits>

#include "attention/cuda/device_executor.h"
#include "base/try.h"
#include "kernels/cuda/heads.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr int32_t kNoCap = std::numeric_limits<int32_t>::max();

}  // namespace

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
  const bool all_free = rows_.unrotated.keys != nullptr;
  keys_apart_ = all_free || std::any_of(rows_.groups.begin(), rows_.groups.end(), is_free);
  for (Rope& rope : ropes_) {
    if (!keys_apart_) break;
    DeviceBuffer<float>& angles = rope.cos_sin_keys;
    REPRISE_CHECK(fill_angles(rope, {0, rows_.rows}, all_free ? 0 : kNoCap,
                              all_free ? 1.0f : rope.factor, angles, stream));
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

}  // namespace reprise
