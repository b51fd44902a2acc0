// What attention of one step costs.
#pragma once

#include <cstdint>
#include <span>

#include "attention/plan.h"

namespace reprise {

/// What the decode rows of one step cost, summed over layers and KV heads.
struct StepCost {
  uint64_t keys_visible = 0, keys_read = 0;
  uint64_t kv_bytes_read = 0;     // of the pages that hold the keys
  uint64_t full_kv_bytes = 0;     // of the pages that full attention would read
  uint64_t index_bytes_read = 0;  // of the policies' own structures
  double select_ms = 0;
  double step_ms = 0;  // of the whole pass, where it was timed
};

/// Adds keys_visible and full_kv_bytes of a layer. rows: of the step. Prefill rows cost nothing.
void add_visible(const ModelConfig& config, uint32_t layer, const SequenceStep& step,
                 std::span<const Row> rows, StepCost& cost);

}  // namespace reprise
