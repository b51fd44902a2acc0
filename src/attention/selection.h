// The answer to the one question: which keys must these query rows read, and what is already known.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace reprise {

/// Keys [begin, end) by index in the sequence.
struct KeyRange {
  int32_t begin = 0, end = 0;
};

/// Which heads share one list of ranges.
enum class HeadSplit : uint8_t { kShared, kPerKvHead, kPerQueryHead };

/// A set of keys. Rows see of it what is causal (key <= own position) and inside window.
struct SelectionPart {
  HeadSplit split = HeadSplit::kShared;
  std::vector<uint32_t> offsets = {0};  // [lists + 1], CSR into ranges; lists: 1, n_kv_head, n_head
  std::vector<KeyRange> ranges;         // ascending and disjoint within a list
  int32_t window = 0;                   // a row at p sees only keys > p - window; 0 = no bound
  /// Rows further right are rotated as if they stood here, so that the distance to these keys stays
  /// bounded (StreamingLLM's positions inside the cache).
  int32_t max_query_position = std::numeric_limits<int32_t>::max();

  std::span<const KeyRange> list(size_t index) const {
    return std::span(ranges).subspan(offsets[index], offsets[index + 1] - offsets[index]);
  }
  void add_list(std::span<const KeyRange> list) {
    ranges.insert(ranges.end(), list.begin(), list.end());
    offsets.push_back(static_cast<uint32_t>(ranges.size()));
  }
};

/// A partial attention result of query rows over some keys; see merge() in partial.h.
struct Partial {
  std::vector<float> out;  // [rows, n_head, head_dim], normalised
  std::vector<float> lse;  // [rows, n_head], natural log; -inf where nothing was read
};

/// Keys to read now: every visible one, or the union of parts that are disjoint for every row.
struct Selection {
  bool all = true;
  std::vector<SelectionPart> parts;  // used when !all
  const Partial* reused = nullptr;   // already summed over keys that parts leave out, or null

  void reset() {
    all = true;
    parts.clear();
    reused = nullptr;
  }
};

}  // namespace reprise
