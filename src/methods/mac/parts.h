// The third step of MAC-Attention: which keys are read beside the reused results.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/selection.h"

namespace reprise {

/// What a decode row reads. Sinks [0, sink) and the band [cut, end) are always read and never
/// stored; what is computed over the keys between them is captured.
struct MacRead {
  int32_t sink = 0, cut = 0, end = 0;
  size_t group = 1;                 // query heads of a KV head
  std::span<const int32_t> reused;  // [n_head] keys before this one are reused; 0: none are
};

/// Fills selection's parts. inner: what the inner policy reads, for query heads that reuse nothing;
/// false when that cannot be divided (its keys are in side pages, or a mean value stands for
/// unread ones), and selection is not changed then.
bool divide_keys(const MacRead& read, const Selection& inner, Selection& selection);

/// Keys that a decode row at a position reads for a KV head of so many query heads; those of lists
/// of query heads are counted for each.
int64_t keys_read(const Selection& selection, size_t kv_head, size_t group, int32_t position);

}  // namespace reprise
