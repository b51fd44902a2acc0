#include "attention/partial.h"

#include <limits>

#include "kernels/attention.h"

namespace reprise {

Partial empty_partial(size_t rows, size_t n_head, size_t head_dim) {
  Partial partial;
  partial.out.assign(rows * n_head * head_dim, 0.0f);
  partial.lse.assign(rows * n_head, -std::numeric_limits<float>::infinity());
  return partial;
}

void merge(Partial& a, const Partial& b) {
  if (a.lse.empty()) return;
  const size_t head_dim = a.out.size() / a.lse.size();
  for (size_t i = 0; i < a.lse.size(); ++i) {
    kernels::merge_partial(&a.out[i * head_dim], &a.lse[i], &b.out[i * head_dim], b.lse[i],
                           head_dim);
  }
}

}  // namespace reprise
