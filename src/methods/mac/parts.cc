#include "methods/mac/parts.h"

#include <algorithm>

#include "methods/key_list.h"

namespace reprise {
namespace {

bool divisible(const Selection& selection) {
  if (selection.all) return true;
  if (!selection.mean.alpha.empty() || selection.reused || selection.captured) return false;
  return std::all_of(selection.parts.begin(), selection.parts.end(), [](const SelectionPart& part) {
    return part.side == nullptr && part.head_begin.empty();
  });
}

/// Adds the keys of a list that lie in [begin, end), with their biases.
void add_clipped(const SelectionPart& from, size_t list, KeyRange keys, SelectionPart& to) {
  size_t bias = 0;  // of the first key of the range
  for (size_t i = 0; i < from.offsets[list] && !from.bias.empty(); ++i) {
    bias += static_cast<size_t>(from.ranges[i].end - from.ranges[i].begin);
  }
  for (const KeyRange& range : from.list(list)) {
    const KeyRange both = {std::max(range.begin, keys.begin), std::min(range.end, keys.end)};
    if (both.begin < both.end) {
      to.ranges.push_back(both);
      if (!from.bias.empty()) {
        const auto first = from.bias.begin() + static_cast<std::ptrdiff_t>(bias) - range.begin;
        to.bias.insert(to.bias.end(), first + both.begin, first + both.end);
      }
    }
    bias += static_cast<size_t>(range.end - range.begin);
  }
  to.offsets.push_back(static_cast<uint32_t>(to.ranges.size()));
}

/// What the inner policy reads between sinks and band, for the heads that reuse nothing.
SelectionPart inner_part(const MacRead& read, const SelectionPart& from) {
  const size_t heads = read.reused.size();
  SelectionPart part;
  part.captured = true;
  part.window = from.window;
  part.max_query_position = from.max_query_position;
  part.rotate_keys = from.rotate_keys;
  part.split = from.split == HeadSplit::kShared ? HeadSplit::kPerKvHead : from.split;
  part.head_begin.resize(heads);
  for (size_t head = 0; head < heads; ++head) {
    part.head_begin[head] = read.reused[head] > 0 ? read.end : 0;
  }
  const size_t sharers = part.split == HeadSplit::kPerQueryHead ? 1 : read.group;  // of a list
  for (size_t list = 0; list * sharers < heads; ++list) {
    const auto own = read.reused.subspan(list * sharers, sharers);
    const bool used = std::find(own.begin(), own.end(), 0) != own.end();
    const KeyRange keys = used ? KeyRange{read.sink, read.cut} : KeyRange{};
    add_clipped(from, from.split == HeadSplit::kShared ? 0 : list, keys, part);
  }
  return part;
}

/// Every key from where the reused ones end, for heads that reuse; the others begin at first.
SelectionPart dense_part(const MacRead& read, int32_t first) {
  SelectionPart part;
  part.captured = true;
  part.head_begin.resize(read.reused.size());
  std::transform(read.reused.begin(), read.reused.end(), part.head_begin.begin(),
                 [&](int32_t reused) { return reused > 0 ? reused : first; });
  std::vector<int32_t> begins;  // of KV heads
  for (size_t head = 0; head < part.head_begin.size(); head += read.group) {
    const auto own = std::span(part.head_begin).subspan(head, read.group);
    begins.push_back(*std::min_element(own.begin(), own.end()));
  }
  // KV heads that share a list are read side by side.
  const bool alike = std::equal(begins.begin() + 1, begins.end(), begins.begin());
  if (alike) begins.resize(1);
  part.split = alike ? HeadSplit::kShared : HeadSplit::kPerKvHead;
  for (const int32_t begin : begins) {
    append_range({begin, read.cut}, part.ranges.size(), part.ranges);
    part.offsets.push_back(static_cast<uint32_t>(part.ranges.size()));
  }
  return part;
}

/// Keys of a list that the row sees; begin: the first one.
int64_t count_keys(const SelectionPart& part, size_t list, int32_t begin, int32_t position) {
  const bool own = part.side == nullptr;  // else every row sees all of them
  if (own && part.window > 0) begin = std::max(begin, position - part.window + 1);
  int64_t keys = 0;
  for (const KeyRange& range : part.list(list)) {
    const int32_t end = own ? std::min(range.end, position + 1) : range.end;
    keys += std::max(0, end - std::max(range.begin, begin));
  }
  return keys;
}

}  // namespace

int64_t keys_read(const Selection& selection, size_t kv_head, size_t group, int32_t position) {
  if (selection.all) return position + 1;
  int64_t keys = 0;
  for (const SelectionPart& part : selection.parts) {
    const size_t first = kv_head * group;
    const bool by_head = part.split == HeadSplit::kPerQueryHead;
    for (size_t head = first; head < first + (by_head ? group : 1); ++head) {
      int32_t begin = 0;
      if (!part.head_begin.empty()) {
        const auto own = std::span(part.head_begin).subspan(head, by_head ? 1 : group);
        begin = *std::min_element(own.begin(), own.end());
      }
      const size_t list = by_head ? head : part.split == HeadSplit::kPerKvHead ? kv_head : 0;
      keys += count_keys(part, list, begin, position);
    }
  }
  return keys;
}

bool divide_keys(const MacRead& read, const Selection& inner, Selection& selection) {
  if (!divisible(inner)) return false;
  selection.all = false;
  selection.index_bytes_read += inner.index_bytes_read;
  selection.parts.push_back(dense_part(read, inner.all ? read.sink : read.cut));
  for (size_t i = 0; !inner.all && i < inner.parts.size(); ++i) {
    selection.parts.push_back(inner_part(read, inner.parts[i]));
  }
  SelectionPart& fresh = selection.parts.emplace_back();
  append_range({0, read.sink}, 0, fresh.ranges);
  append_range({read.cut, read.end}, 0, fresh.ranges);
  fresh.offsets.push_back(static_cast<uint32_t>(fresh.ranges.size()));
  return true;
}

}  // namespace reprise
