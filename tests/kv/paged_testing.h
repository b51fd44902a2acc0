// Sequences that are used while most of their pages lie on disk.
#pragma once

#include <algorithm>
#include <vector>

#include "kv/kv_testing.h"
#include "kv/page_map.h"

namespace reprise {

using Values = std::vector<int32_t>;

/// Pages of a layer, held while it lives.
class Held {
 public:
  Held(SequenceKv& kv, uint32_t layer, size_t first, size_t end)
      : kv_(kv), layer_(layer), pages_(kv.pages(layer).begin(), kv.pages(layer).end()) {
    pages_ = {pages_.begin() + static_cast<std::ptrdiff_t>(first),
              pages_.begin() + static_cast<std::ptrdiff_t>(end)};
    status = kv.pool().fetch(layer, pages_);
  }
  ~Held() {
    if (!status) return;
    for (const PageId page : pages_) kv_.pool().rest(layer_, page, kv_.pool().now());
  }
  Status status;

 private:
  SequenceKv& kv_;
  uint32_t layer_;
  std::vector<PageId> pages_;
};

inline void write_paged(SequenceKv& kv, int32_t position, int32_t value) {
  const auto& layout = kv.pool().layout();
  const auto at = static_cast<size_t>(position), block = at / kPageTokens;
  for (uint32_t layer = 0; layer < kv.pool().layers(); ++layer) {
    const Held held(kv, layer, block, block + 1);
    ASSERT_TRUE(held.status) << held.status.error().message;
    kv.pool().will_write(layer, kv.pages(layer)[block]);
    kernels::store_token(layout, kv.page(layer, block), at % kPageTokens,
                         token_vector(layout, layer, value, 1.0f).data(),
                         token_vector(layout, layer, value, -1.0f).data());
  }
}

inline bool append_paged(SequenceKv& kv, const Values& values) {
  if (!kv.reserve(values.size())) return false;
  for (size_t i = 0; i < values.size(); ++i) {
    write_paged(kv, kv.length() + static_cast<int32_t>(i), values[i]);
  }
  kv.commit(values.size());
  return true;
}

inline void expect_paged(SequenceKv& kv, const Values& values, size_t step = 4) {
  ASSERT_EQ(static_cast<size_t>(kv.length()), values.size());
  const size_t blocks = PageMap::blocks_of(values.size());
  for (uint32_t layer = 0; layer < kv.pool().layers(); ++layer) {
    for (size_t first = 0; first < blocks; first += step) {
      const size_t end = std::min(blocks, first + step);
      const Held held(kv, layer, first, end);
      ASSERT_TRUE(held.status) << held.status.error().message;
      for (size_t i = first * kPageTokens; i < std::min(end * kPageTokens, values.size()); ++i) {
        ASSERT_TRUE(holds_token(kv, layer, static_cast<int32_t>(i), values[i]))
            << layer << " " << i;
      }
    }
  }
}

}  // namespace reprise
