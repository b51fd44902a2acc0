#include "methods/baselines/streaming.h"

#include <algorithm>

namespace reprise {

StreamingPolicy::StreamingPolicy(const StreamingOptions& options, const ModelConfig& config)
    : options_(options),
      sink_(static_cast<int32_t>(options.sink)),
      window_(static_cast<int32_t>(options.window)),
      cache_positions_(options.positions == "cache"),
      whole_prompts_(options.prompt == "full"),
      layer_windows_(config.window.begin(), config.window.end()) {}

void StreamingPolicy::select(const QueryRows& rows, Selection& selection) {
  const int32_t first = rows.rows.front().position;
  const int32_t end = rows.rows.back().position + 1;
  if (end <= sink_ + window_) return;
  if (whole_prompts_ && rows.phase == kernels::Phase::kPrefill) return;
  selection.all = false;
  SelectionPart& sinks = selection.parts.emplace_back();
  const KeyRange sink_range = {0, std::min(sink_, end)};
  sinks.add_list({&sink_range, 1});
  // The cache never holds more than sink + window keys, so no query stands further right than that.
  if (cache_positions_) sinks.max_query_position = sink_ + window_ - 1;

  SelectionPart& recent = selection.parts.emplace_back();
  recent.window = window_;
  const KeyRange recent_range = {std::max(sink_, first - window_ + 1), end};
  if (recent_range.begin < end)
    recent.add_list({&recent_range, 1});
  else
    recent.add_list({});
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
  for (uint32_t layer = 0; layer < kv.pool().layers(); ++layer) {
    const KeyRange gone = evictable(layer, length);
    if (!keys_present(kv, layer, 0, std::min(gone.begin, length)) ||
        !keys_present(kv, layer, std::max(gone.begin, gone.end), length)) {
      return false;
    }
  }
  return true;
}

}  // namespace reprise
