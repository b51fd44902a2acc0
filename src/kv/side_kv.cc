#include "kv/side_kv.h"

namespace reprise {

bool SideKv::own(PagePool& pool, uint32_t layer, std::span<const int32_t> slots) {
  std::vector<bool> wanted(PageMap::blocks_of(capacity_));
  for (const int32_t slot : slots) wanted[static_cast<size_t>(slot) / kPageTokens] = true;
  return own_blocks(pool, place_of(layer), wanted);
}

bool SideKv::own_all(PagePool& pool, uint32_t layer) {
  return own_blocks(pool, place_of(layer), std::vector<bool>(PageMap::blocks_of(capacity_), true));
}

bool SideKv::own_blocks(PagePool& pool, uint32_t layer, const std::vector<bool>& wanted) {
  if (!pages_) {
    pages_.emplace(pool);
    const auto tokens = static_cast<int32_t>(wanted.size() * kPageTokens);
    if (!pages_->reserve_pages(tokens, PageMap(pool.layers(), wanted.size()))) return false;
  }
  const auto table = pages_->pages(layer);
  uint64_t fresh = 0;
  for (size_t block = 0; block < table.size(); ++block) {
    const bool own = table[block] != kNoPage && pool.references(layer, table[block]) == 1;
    fresh += wanted[block] && !own ? 1 : 0;
  }
  if (fresh == 0) return true;
  if (!pool.claim(fresh)) return false;
  for (size_t block = 0; block < table.size(); ++block) {
    if (wanted[block] && !pages_->own_page(layer, block)) return false;
  }
  return true;
}

void SideKv::copy(uint32_t layer, size_t head, const SequenceKv& from, int32_t token,
                  int32_t slot) {
  const auto source = static_cast<size_t>(token), target = static_cast<size_t>(slot);
  kernels::copy_token(pages_->pool().layout(), head, from.page(layer, source / kPageTokens),
                      source % kPageTokens, pages_->page(place_of(layer), target / kPageTokens),
                      target % kPageTokens);
}

void SideKv::drop(uint32_t layer) {
  if (pages_) pages_->evict(place_of(layer), 0, pages_->length());
}

}  // namespace reprise
