#include "methods/cuda/streaming.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {
namespace {

// Layers with windows of their own are not asked.
std::vector<int32_t> windows_of(const StreamingOptions& options, const ModelConfig& config) {
  std::vector<int32_t> windows;
  for (const uint32_t own : config.window) {
    windows.push_back(own > 0 ? 0 : static_cast<int32_t>(options.window));
  }
  return windows;
}

}  // namespace

DeviceStreaming::DeviceStreaming(const StreamingOptions& options, const ModelConfig& config)
    : sink_(static_cast<int32_t>(options.sink)),
      window_(static_cast<int32_t>(options.window)),
      cache_positions_(options.positions == "cache"),
      whole_prompts_(options.prompt == "full"),
      ranges_(windows_of(options, config), options.sink) {}

Status DeviceStreaming::reserve(const DeviceRoom& room) {
  return ranges_.reserve(room.sequences, room.capacity);
}

Status DeviceStreaming::begin(const DeviceRows& rows, const PagedKv&, cudaStream_t stream) {
  const auto is_own = [&](const DeviceGroup& group) {
    return group.policy == this && group.first < rows.decode_rows;
  };
  if (std::none_of(rows.groups.begin(), rows.groups.end(), is_own)) return {};
  return ranges_.list(rows, stream);
}

Status DeviceStreaming::select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t) {
  read.lists = ranges_.lists(queries.layer, queries.first);
  read.known = true;
  if (cache_positions_) read.capped_pages = ranges_.sink_pages();
  return {};
}

// Until sinks and window are full everything is read; no step has rows on both sides (next_cut).
std::vector<PrefillPart> DeviceStreaming::prefill_parts(uint32_t, uint32_t,
                                                        int32_t position) const {
  if (whole_prompts_ || position < sink_ + window_) return {};
  PrefillPart recent, sinks;
  recent.first_key = sinks.end_key = sink_;
  recent.window = window_;
  sinks.capped = cache_positions_;
  if (sink_ == 0) return {recent};
  return {recent, sinks};
}

// The cache never holds more than sink + window keys, so no query stands further right than that.
int32_t DeviceStreaming::max_query_position() const {
  return cache_positions_ && sink_ > 0 ? sink_ + window_ - 1 : DevicePolicy::max_query_position();
}

uint64_t DeviceStreaming::keys_read(const DeviceRow& row) const {
  const int32_t seen = row.position + 1, sinks = std::min(seen, sink_);
  return static_cast<uint64_t>(sinks + std::min(window_, seen - sinks));
}

}  // namespace reprise
