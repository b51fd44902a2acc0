// The only algebra of attention: merging partial results over disjoint sets of keys.
#pragma once

#include "attention/selection.h"

namespace reprise {

/// An empty partial (lse = -inf, out = 0): the identity of merge.
Partial empty_partial(size_t rows, size_t n_head, size_t head_dim);

/// a <- merge(a, b): the result over the union of both key sets. Both have the same rows and heads.
/// Associative and commutative up to rounding.
void merge(Partial& a, const Partial& b);

}  // namespace reprise
