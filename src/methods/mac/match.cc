#include "methods/mac/match.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/float16.h"
#include "kernels/key_logits.h"

namespace reprise {
namespace {

constexpr float kUnit = 0x1p-24f;  // half a unit in the last place of 1 in float

bool may_be_reused(const MacRing& ring, size_t head, size_t slot, const MacLimits& limits) {
  const int32_t position = ring.tag(slot);
  if (position < limits.first || position > limits.last) return false;
  if (!limits.results) return true;
  const MacState& state = ring.state(head, slot);
  return state.anchor >= limits.oldest_anchor && !std::isinf(state.lse);
}

/// Fills search.q and search.dots.
void multiply(const MacRing& ring, size_t head, const float* q, size_t stride, size_t queries,
              MacSearch& search) {
  const size_t head_dim = ring.layout().head_dim;
  search.q.resize(queries * head_dim);
  for (size_t i = 0; i < search.q.size(); ++i) {
    search.q[i] = to_float(to_bf16(q[i / head_dim * stride + i % head_dim]));
  }
  ring.list_tiles(head, search.tiles);
  kernels::KeyLogitsArgs args;
  args.layout = &ring.layout();
  args.rows = queries;
  args.q = search.q.data();
  args.q_stride = head_dim;
  args.pages = search.tiles;
  args.out_stride = search.tiles.size() * kernels::kPageTokens;
  search.dots.resize(queries * args.out_stride);
  args.out = search.dots.data();
  kernels::key_logits(args);
}

/// q: rounded; distances: its products.
MacMatch nearest(const MacRing& ring, size_t head, const float* q, const MacLimits& limits,
                 float* distances, MacSearch& search) {
  const size_t head_dim = ring.layout().head_dim;
  const float norm = std::inner_product(q, q + head_dim, q, 0.0f);
  const auto norms = ring.norms2(head);
  // |a - b|^2 = |a|^2 + |b|^2 - 2ab: each of the sums of head_dim products is off by at most
  // head_dim units of what it adds up.
  const float unit = 2.0f * static_cast<float>(head_dim) * kUnit;
  for (size_t slot = 0; slot < norms.size(); ++slot) {
    distances[slot] = norm + norms[slot] - 2.0f * distances[slot];
  }
  const auto error = [&](size_t slot) { return unit * (norm + norms[slot]); };
  float bound = limits.distance2;  // the nearest is not farther
  search.near.clear();
  for (size_t slot = 0; slot < norms.size(); ++slot) {
    if (!(distances[slot] - error(slot) <= bound)) continue;
    if (!may_be_reused(ring, head, slot, limits)) continue;
    bound = std::min(bound, distances[slot] + error(slot));
    search.near.push_back(slot);
  }
  MacMatch best;
  float nearest = limits.distance2;
  search.stored.resize(head_dim);
  for (const size_t slot : search.near) {
    if (distances[slot] - error(slot) > bound) continue;
    ring.load_q(head, slot, search.stored.data());
    float distance2 = 0.0f;
    for (size_t d = 0; d < head_dim; ++d) {
      const float difference = q[d] - search.stored[d];
      distance2 += difference * difference;
    }
    const bool tie = distance2 == nearest && best.found() && ring.tag(slot) > best.position;
    if (!(distance2 < nearest) && !tie) continue;
    nearest = distance2;
    best = {ring.tag(slot), std::sqrt(distance2)};
  }
  return best;
}

}  // namespace

void nearest_entries(const MacRing& ring, size_t head, const float* q, size_t stride,
                     std::span<const MacLimits> limits, MacSearch& search, MacMatch* found) {
  multiply(ring, head, q, stride, limits.size(), search);
  const size_t head_dim = ring.layout().head_dim;
  const size_t slots = search.tiles.size() * kernels::kPageTokens;
  for (size_t i = 0; i < limits.size(); ++i) {
    found[i] =
        nearest(ring, head, &search.q[i * head_dim], limits[i], &search.dots[i * slots], search);
  }
}

}  // namespace reprise
