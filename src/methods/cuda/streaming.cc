#include "methods/cuda/streaming.h"

#include <algorithm>

#include "base/try.h"
#include "kernels/cuda/page_table.h"

namespace reprise {

DeviceStreaming::DeviceStreaming(const StreamingOptions& options) {
  sinks_.end_key = static_cast<int32_t>(options.sink);
  recent_.first_key = sinks_.end_key;
  recent_.window = static_cast<int32_t>(options.window);
  // The cache never holds more than sink + window keys, so no query stands further right than that.
  if (options.positions == "cache") sinks_.max_query_position = sinks_.end_key + recent_.window - 1;
}

Status DeviceStreaming::reserve(const DeviceRoom& room) {
  REPRISE_CHECK(reserve(sink_lists_, static_cast<uint32_t>(sinks_.end_key), room.sequences));
  return reserve(recent_lists_, static_cast<uint32_t>(recent_.window), room.sequences);
}

Status DeviceStreaming::reserve(Lists& lists, uint32_t keys, uint32_t sequences) {
  constexpr std::string_view kWhat = "lists of keys";
  lists.capacity = keys / kernels::cuda::kPageTokens + 2;
  const size_t entries = size_t{sequences} * lists.capacity;
  REPRISE_CHECK(lists.pages.reserve(entries, kWhat));
  REPRISE_CHECK(lists.slots.reserve(entries, kWhat));
  return lists.keys.reserve(sequences, kWhat);
}

Status DeviceStreaming::select(const DeviceQueries& queries, std::vector<DevicePart>& parts,
                               cudaStream_t stream) {
  REPRISE_CHECK(add_part(queries, recent_, recent_lists_, parts, stream));
  if (sinks_.end_key == 0) return {};
  return add_part(queries, sinks_, sink_lists_, parts, stream);
}

Status DeviceStreaming::add_part(const DeviceQueries& queries, const PrefillPart& range,
                                 const Lists& lists, std::vector<DevicePart>& parts,
                                 cudaStream_t stream) {
  kernels::cuda::RangeLists args;
  args.table = queries.pages;
  args.positions = queries.positions;
  args.count = queries.count;
  args.capacity = queries.capacity;
  args.window = range.window;
  args.first_key = range.first_key;
  args.end_key = range.end_key;
  args.pages = lists.pages.data();
  args.slots = lists.slots.data();
  args.keys = lists.keys.data();
  args.list_capacity = lists.capacity;
  REPRISE_CUDA(kernels::cuda::range_lists(args, stream), "choosing keys");
  parts.push_back(
      {{args.pages, args.slots, args.keys, 1, lists.capacity}, range.max_query_position});
  return {};
}

// Until sinks and window are full everything is read; no step has rows on both sides (next_cut).
std::vector<PrefillPart> DeviceStreaming::prefill_parts(int32_t position) const {
  if (position < sinks_.end_key + recent_.window) return {};
  if (sinks_.end_key == 0) return {recent_};
  return {recent_, sinks_};
}

uint64_t DeviceStreaming::keys_read(int32_t position) const {
  const int32_t seen = position + 1;
  const int32_t sinks = std::min(seen, sinks_.end_key);
  const int32_t recent = std::min(recent_.window, std::max(0, seen - recent_.first_key));
  return static_cast<uint64_t>(sinks + recent);
}

}  // namespace reprise
