#include "methods/csattention/centroid_products.h"

#include "kernels/key_logits.h"
#include "methods/key_list.h"

namespace reprise {

void centroid_products(const QueryRows& rows, size_t kv_head, KeyRange keys,
                       std::span<const uint16_t> pairs, std::span<const float> centroids,
                       float scale, CentroidProducts& products) {
  const kernels::KvLayout& layout = rows.kv->pool().layout();
  const size_t dims = 2 * pairs.size(), count = centroids.size() / dims;
  std::vector<float> directions(count * layout.head_dim);
  for (size_t i = 0; i < centroids.size(); ++i) {
    const size_t d = i % dims;
    directions[i / dims * layout.head_dim + 2 * pairs[d / 2] + d % 2] = centroids[i];
  }
  std::vector<kernels::PageSpan> pages;
  list_pages(rows, kv_head, keys.begin, keys.end, pages);
  products.stride = pages.size() * kPageTokens;
  products.first = static_cast<size_t>(keys.begin) % kPageTokens;
  products.values.resize(count * products.stride);
  kernels::KeyLogitsArgs args;
  args.layout = &layout;
  args.rows = count;
  args.q = directions.data();
  args.q_stride = layout.head_dim;
  args.pages = pages;
  args.pairs = pairs;
  args.scale = scale;
  args.out = products.values.data();
  args.out_stride = products.stride;
  kernels::key_logits(args);
}

}  // namespace reprise
