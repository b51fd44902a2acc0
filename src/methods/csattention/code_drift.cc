#include "methods/csattention/code_drift.h"

#include <algorithm>
#include <vector>

#include "kernels/kv_page.h"

namespace reprise {
namespace {

constexpr int32_t kSamples = 256;  // keys that codes were fitted to, and as many of later ones

// Summed squared errors of the logits of a key, on average over a sample of keys.
struct Errors {
  double now = 0.0, then = 0.0;
};

// e M e by what it is on average over directions of e; no M: Euclidean.
double weighed(std::span<const float> metric, std::span<const float> e) {
  const size_t dims = e.size();
  double sum = 0.0;
  for (size_t i = 0; i < dims; ++i) {
    if (metric.empty()) sum += double{e[i]} * e[i];
    for (size_t j = 0; j < dims && !metric.empty(); ++j) {
      sum += double{metric[i * dims + j]} * e[i] * e[j];
    }
  }
  return sum / static_cast<double>(dims);
}

// Of the keys of a KV head.
Errors errors(const QueryRows& rows, const KeyCodes& codes, size_t kv_head, KeyRange keys,
              const PartMetrics& now, std::span<const float> energies) {
  const kernels::KvLayout& layout = rows.kv->pool().layout();
  const size_t parts = energies.size() / layout.n_kv_head;
  const auto centroids = codes.centroids(rows.layer, kv_head);
  const PartMetrics& then = codes.metrics(rows.layer);
  const int32_t step = std::max(1, (keys.end - keys.begin) / kSamples);
  std::vector<float> k(layout.head_dim), e;
  Errors sums;
  double count = 0.0;
  for (int32_t key = keys.begin; key < keys.end; key += step, ++count) {
    const auto at = static_cast<size_t>(key);
    const std::byte* page = rows.kv->page(rows.layer, at / kPageTokens);
    kernels::load_k(layout, page + layout.k_offset(kv_head), at % kPageTokens, k.data());
    for (size_t part = 0; part < parts; ++part) {
      const float* centroid =
          &centroids[codes.code(rows.layer, kv_head, part, at) * layout.head_dim];
      e.clear();
      for (const uint16_t pair : codes.part_pairs(part)) {
        for (const size_t d : {2 * size_t{pair}, 2 * size_t{pair} + 1}) {
          e.push_back(k[d] - centroid[d]);
        }
      }
      const size_t index = kv_head * parts + part;
      sums.now += double{energies[index]} * weighed(now[index], e);
      sums.then += double{energies[index]} *
                   weighed(then.empty() ? std::span<const float>() : then[index], e);
    }
  }
  return {sums.now / std::max(count, 1.0), sums.then / std::max(count, 1.0)};
}

}  // namespace

float code_drift(const QueryRows& rows, const KeyCodes& codes, KeyRange keys,
                 const PartMetrics& now, std::span<const float> energies) {
  const size_t heads = rows.kv->pool().layout().n_kv_head;
  const int32_t fitted = std::min(codes.trained_end(rows.layer), keys.end);
  std::vector<Errors> old_keys(heads), new_keys(heads);
  rows.pool->run(heads, [&](size_t head, int) {
    old_keys[head] = errors(rows, codes, head, {keys.begin, fitted}, now, energies);
    new_keys[head] = errors(rows, codes, head, {fitted, keys.end}, now, energies);
  });
  const double share = double(keys.end - fitted) / double(keys.end - keys.begin);  // of new keys
  double have = 0.0, expected = 0.0;
  for (size_t head = 0; head < heads; ++head) {
    have += (1.0 - share) * old_keys[head].now + share * new_keys[head].now;
    expected += old_keys[head].then;
  }
  return expected > 0.0 ? static_cast<float>(have / expected) : 1.0f;
}

}  // namespace reprise
