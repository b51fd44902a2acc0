// The answer to the one question: which keys must these query rows read, and what is already known.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kv/sequence_kv.h"

namespace reprise {

/// Keys [begin, end) by index in the sequence.
struct KeyRange {
  int32_t begin = 0, end = 0;
};

/// Which heads share one list of ranges.
enum class HeadSplit : uint8_t { kShared, kPerKvHead, kPerQueryHead };

/// A set of keys. Rows see of it what is causal (key <= own position) and inside window.
///
/// With side, the keys are not the sequence's own but lie in pages that the policy keeps: key i is
/// token i of side, and every row sees all keys of the ranges.
struct SelectionPart {
  HeadSplit split = HeadSplit::kShared;
  std::vector<uint32_t> offsets = {0};  // [lists + 1], CSR into ranges; lists: 1, n_kv_head, n_head
  std::vector<KeyRange> ranges;         // ascending and disjoint within a list
  int32_t window = 0;                   // a row at p sees only keys > p - window; 0 = no bound
  /// Rows further right are rotated as if they stood here, so that the distance to these keys stays
  /// bounded (StreamingLLM's positions inside the cache).
  int32_t max_query_position = std::numeric_limits<int32_t>::max();
  bool rotate_keys = true;  // false: position-free keys are read as if they stood at position 0
  /// Position-free keys are read as if the ranges followed each other without gaps from position 0,
  /// and rows stand where that puts them (ReAttention). One shared list, whose last range holds all
  /// rows of the step.
  bool packed = false;
  const SequenceKv* side = nullptr;
  bool one_side_layer = false;  // all layers read the first of side
  std::vector<float> bias;      // [keys of the ranges in order] added to their logits; or empty
  /// [n_head] A query head sees no key before this one; or empty. The group's list is still read
  /// once: query heads that need other lengths of it need no lists of their own.
  std::vector<int32_t> head_begin;
  bool captured = false;  // its result is also part of Selection::captured

  std::span<const KeyRange> list(size_t index) const {
    return std::span(ranges).subspan(offsets[index], offsets[index + 1] - offsets[index]);
  }
  /// How far left of its own position packing puts a key of the last range of a packed part.
  int32_t row_shift() const {
    int32_t before = 0;
    for (size_t i = 0; i + 1 < ranges.size(); ++i) before += ranges[i].end - ranges[i].begin;
    return ranges.empty() ? 0 : ranges.back().begin - before;
  }
  /// The layer of its pages that rows of a layer read.
  uint32_t pages_layer(uint32_t layer) const { return one_side_layer ? 0 : layer; }
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

/// What pages get of the attention of a decode row over what it reads.
struct PageShares {
  bool largest = false;           // asked for: the largest share of a page's keys, not their sum
  uint32_t heads = 1;             // query heads that share a list: 1 or those of a KV head
  std::vector<uint32_t> offsets;  // [lists + 1], CSR into pages
  std::vector<int32_t> pages;     // in any order; parts that divide a page both name it
  std::vector<float> values;      // [pages] summed over the list's query heads
  double ms = 0;                  // what this took, threads side by side

  size_t lists() const { return offsets.empty() ? 0 : offsets.size() - 1; }
  std::span<const int32_t> list(size_t index) const {
    return std::span(pages).subspan(offsets[index], offsets[index + 1] - offsets[index]);
  }
  std::span<const float> of(size_t index) const {
    return std::span(values).subspan(offsets[index], offsets[index + 1] - offsets[index]);
  }
};

/// Output = alpha out + (1 - alpha) value: stands for keys that are not read by their mean value
/// (Ribar et al. 2024, SparQ, section 4).
struct MeanValue {
  std::vector<float> alpha;  // [rows, n_head] share of the keys that are read; empty = not used
  std::vector<float> value;  // [n_kv_head, head_dim]
};

/// Keys to read now: every visible one, or the union of parts that are disjoint for every row.
struct Selection {
  bool all = true;
  std::vector<SelectionPart> parts;  // used when !all
  const Partial* reused = nullptr;   // already summed over keys that parts leave out, or null
  /// Of decode rows, or null: gets the result over reused and the parts marked captured, apart from
  /// the rest, before observe() is called.
  Partial* captured = nullptr;
  /// Of a decode step's only row, or null: gets what pages get of its attention, before observe()
  /// is called.
  PageShares* shares = nullptr;
  MeanValue mean;
  uint64_t index_bytes_read = 0;  // of the policy's own structures, to decide

  void reset() { *this = {}; }
};

}  // namespace reprise
