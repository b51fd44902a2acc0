#include "fusion/fused_pass.h"

#include <algorithm>

namespace reprise {

Result<uint32_t> check_layer(const RowCheck& check, const ModelConfig& config, int32_t prompt_end) {
  const uint32_t wanted = check.layer > 0 ? check.layer : std::max(1u, config.n_layer / 5);
  const uint32_t named = std::min(wanted, config.n_layer - 1);
  const auto serves = [&](uint32_t layer) {
    const uint32_t window = config.window[layer];
    return check.by_values || window == 0 || window >= static_cast<uint32_t>(prompt_end);
  };
  for (uint32_t layer = named; layer < config.n_layer; ++layer) {
    if (serves(layer)) return layer;
  }
  for (uint32_t layer = named; layer-- > 1;) {
    if (serves(layer)) return layer;
  }
  return fail(ErrorCode::kUnsupported,
              "fusion a3 needs a layer in which the question sees the whole prompt; the windows of "
              "this model's are shorter than its {} tokens; use cacheblend, legolink or pie",
              prompt_end);
}

}  // namespace reprise
