#include "fusion/fused_pass.h"

#include <algorithm>

#include "base/try.h"
#include "base/units.h"

namespace reprise {

Result<std::vector<uint32_t>> check_layers(const RowCheck& check, const ModelConfig& config,
                                           int32_t prompt_end) {
  const uint32_t wanted = check.layer > 0 ? check.layer : (config.n_layer + 3) / 4;
  const uint32_t named = std::min(wanted, config.n_layer - 1);
  const auto serves = [&](uint32_t layer) {
    const uint32_t window = config.window[layer];
    return check.score == RowScore::kValues || window == 0 ||
           window >= static_cast<uint32_t>(prompt_end);
  };
  uint32_t last = named;
  while (last < config.n_layer && !serves(last)) ++last;
  if (last == config.n_layer) {
    last = named;
    while (last > 0 && !serves(last)) --last;
  }
  if (!serves(last) || (last == 0 && named > 0)) {
    return fail(ErrorCode::kUnsupported,
                "fusion a3 needs a layer in which the question sees the whole prompt; the windows "
                "of this model's are shorter than its {} tokens; use cacheblend, legolink or pie",
                prompt_end);
  }
  std::vector<uint32_t> layers;
  const bool several = check.score == RowScore::kHeads;
  for (uint32_t layer = several ? (last + 1) / 2 : last; layer <= last; ++layer) {
    if (serves(layer)) layers.push_back(layer);
  }
  return layers;
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
