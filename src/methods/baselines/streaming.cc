#include "methods/baselines/streaming.h"

#include <algorithm>

#include "methods/first_and_recent.h"

namespace reprise {

StreamingPolicy::StreamingPolicy(const StreamingOptions& options, const ModelConfig& config)
    : options_(options),
      sink_(static_cast<int32_t>(options.sink)),
      window_(static_cast<int32_t>(options.window)),
      cache_positions_(options.positions == "cache"),
      whole_prompts_(options.prompt == "full"),
      layer_windows_(config.window.begin(), config.window.end()) {}

void StreamingPolicy::select(const QueryRows& rows, Selection& selection) {
  if (whole_prompts_ && rows.phase == kernels::Phase::kPrefill) return;
  read_first_and_recent(rows, sink_, window_, selection);
  // The cache never holds more than sink + window keys, so no query stands further right than that.
  if (cache_positions_ && !selection.all) {
    selection.parts.front().max_query_position = sink_ + window_ - 1;
  }
}

KeyRange StreamingPolicy::evictable(size_t layer, int32_t length) const {
  if (whole_prompts_) return {};
  const int32_t own = layer_windows_[layer];
  if (own == 0 && is_left_alone(static_cast<uint32_t>(layer))) return {};
  return own > 0 ? KeyRange{0, length - own + 1} : KeyRange{sink_, length - window_ + 1};
}

void StreamingPolicy::after_step(SequenceKv& kv) {
  for (uint32_t layer = 0; layer < kv.pool().layers(); ++layer) {
    const KeyRange gone = evictable(layer, kv.length());
    if (gone.begin < gone.end) kv.evict(layer, gone.begin, gone.end);
  }
}

bool StreamingPolicy::can_resume(const SequenceKv& kv, int32_t length) const {
  const bool partial = static_cast<size_t>(length) % kPageTokens != 0;  // then it is written on
  const int32_t last = partial ? length - 1 : length;
  for (uint32_t layer = 0; layer < kv.pool().layers(); ++layer) {
    const KeyRange gone = evictable(layer, length);
    if (!keys_present(kv, layer, 0, std::min(gone.begin, length)) ||
        !keys_present(kv, layer, std::min(std::max(gone.begin, gone.end), last), length)) {
      return false;
    }
  }
  return true;
}

}  // namespace reprise
