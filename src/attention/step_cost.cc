#include "attention/step_cost.h"

#include <algorithm>

namespace reprise {

void add_visible(const ModelConfig& config, uint32_t layer, const SequenceStep& step,
                 std::span<const Row> rows, StepCost& cost) {
  if (step.phase != kernels::Phase::kDecode) return;
  for (const Row& row : rows) {
    const auto seen = static_cast<uint64_t>(row.position) + 1;
    const uint64_t window = config.window[layer];
    const uint64_t visible = window > 0 ? std::min(seen, window) : seen;
    cost.keys_visible += visible * config.n_kv_head;
    const uint64_t pages = (seen - 1) / kPageTokens - (seen - visible) / kPageTokens + 1;
    cost.full_kv_bytes += pages * step.kv->pool().page_bytes();
  }
}

}  // namespace reprise
