#include "fusion/fused_pass.h"

#include <algorithm>

#include "base/try.h"
#include "base/units.h"

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

Status check_memory(const PagePool& pool, size_t tokens) {
  const KvTiers tiers = pool.tiers();
  const uint64_t room = tiers.memory.limit_bytes + tiers.host.limit_bytes;
  const uint64_t need = PageMap::blocks_of(tokens) * pool.page_bytes() * pool.layers();
  if (need <= room) return {};
  return fail(ErrorCode::kOutOfMemory,
              "stored documents need the KV of all {} tokens in memory at once, whatever --policy "
              "and --kv-disk are: {}, and there is room for {}; raise --kv-memory or choose a "
              "smaller --kv-type",
              tokens, bytes_text(need), bytes_text(room));
}

Status reserve_in_memory(SequenceKv& kv, size_t rows) {
  const PagePool& pool = kv.pool();
  REPRISE_CHECK(check_memory(pool, static_cast<size_t>(kv.length()) + rows));
  const Status status = kv.reserve(rows);
  if (status || status.error().code != ErrorCode::kOutOfMemory) return status;
  const KvTier memory = pool.tiers().memory;
  return fail(
      ErrorCode::kOutOfMemory,
      "no KV memory for {} more tokens at once ({} of {} in use); wait for running requests "
      "to end, or raise --kv-memory",
      rows, bytes_text(memory.bytes), bytes_text(memory.limit_bytes));
}

}  // namespace reprise
