#include "kv/sequence_kv.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "base/try.h"

namespace reprise {
namespace {

// Pages taken for a change that is not certain yet: given back unless the change goes through.
class PageLoan {
 public:
  explicit PageLoan(PagePool& pool) : pool_(pool), taken_(pool.layers()) {}
  PageLoan(const PageLoan&) = delete;
  PageLoan& operator=(const PageLoan&) = delete;
  ~PageLoan() {
    for (uint32_t layer = 0; layer < pool_.layers(); ++layer) {
      for (size_t i = taken_[layer].size(); i-- > 0;) pool_.release(layer, taken_[layer][i]);
    }
  }
  bool take(uint32_t layer) {
    const PageId page = pool_.allocate(layer);
    if (page != kNoPage) taken_[layer].push_back(page);
    return page != kNoPage;
  }
  std::vector<PageId> keep(uint32_t layer) { return std::exchange(taken_[layer], {}); }

 private:
  PagePool& pool_;
  std::vector<std::vector<PageId>> taken_;  // [n_layer]
};

}  // namespace

SequenceKv::SequenceKv(PagePool& pool)
    : pool_(&pool), tables_(pool.layers()), holes_(pool.layers()) {
  change_version();
}

SequenceKv::SequenceKv(const SequenceKv& other)
    : pool_(other.pool_),
      length_(other.length_),
      resting_(other.resting_),
      paged_(other.paged_),
      tables_(other.tables_),
      holes_(other.holes_) {
  change_version();
  const size_t blocks = PageMap::blocks_of(static_cast<size_t>(length_));
  for (uint32_t layer = 0; layer < tables_.size(); ++layer) {
    tables_[layer].resize(blocks);
    for (const PageId page : tables_[layer]) {
      if (page != kNoPage) pool_->retain(layer, page, !resting_);
    }
  }
}

SequenceKv::SequenceKv(SequenceKv&& other) noexcept
    : pool_(other.pool_),
      length_(std::exchange(other.length_, 0)),
      version_(other.version_),
      resting_(other.resting_),
      paged_(other.paged_),
      tables_(std::move(other.tables_)),
      holes_(std::move(other.holes_)) {
  other.change_version();
}

SequenceKv& SequenceKv::operator=(SequenceKv other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(length_, other.length_);
  std::swap(version_, other.version_);
  std::swap(resting_, other.resting_);
  std::swap(paged_, other.paged_);
  std::swap(tables_, other.tables_);
  std::swap(holes_, other.holes_);
  return *this;
}

SequenceKv::~SequenceKv() { release_from(0); }

void SequenceKv::change_version() {
  static std::atomic<uint64_t> last{0};
  version_ = ++last;
}

void SequenceKv::rest() {
  paged_ = false;
  if (resting_) return;
  resting_ = true;
  const uint64_t now = pool_->now();
  for (uint32_t layer = 0; layer < tables_.size(); ++layer) {
    for (size_t block = 0; block < tables_[layer].size(); ++block) {
      const PageId page = tables_[layer][block];
      if (page != kNoPage) pool_->rest(layer, page, now - block);  // the end goes first
    }
  }
}

void SequenceKv::hold() {
  if (!resting_ || paged_) return;
  resting_ = false;
  for (uint32_t layer = 0; layer < tables_.size(); ++layer) {
    for (const PageId page : tables_[layer]) {
      if (page != kNoPage) pool_->hold(layer, page);
    }
  }
}

int32_t SequenceKv::leading(size_t blocks) const {
  const auto length = static_cast<size_t>(length_);
  return static_cast<int32_t>(blocks < PageMap::blocks_of(length) ? blocks * kPageTokens : length);
}

int32_t SequenceKv::page_out() {
  rest();
  paged_ = true;
  size_t whole = ~size_t{0};
  for (uint32_t layer = 0; layer < tables_.size(); ++layer) {
    for (size_t block = 0; block < std::min(whole, tables_[layer].size()); ++block) {
      const PageId page = tables_[layer][block];
      if (page != kNoPage && !pool_->has(layer, page)) whole = block;
    }
  }
  return leading(whole);
}

Result<int32_t> SequenceKv::wake() {
  paged_ = false;
  hold();
  auto lost = pool_->bring_back(tables_);
  if (!lost) {
    rest();
    return tl::unexpected<Error>(std::move(lost.error()));
  }
  return leading(*lost);
}

Status SequenceKv::check_room(uint64_t pages, size_t tokens) const {
  // A sequence that is used from disk exchanges its pages through one that stays free.
  if (pool_->make_room(pages, paged_ ? 1 : 0)) return {};
  return fail(ErrorCode::kOutOfMemory,
              "no KV memory for {} more tokens: {} pages needed, {} free of {} MiB; raise the KV "
              "memory limit",
              tokens, pages, pool_->room(), pool_->limit_bytes() >> 20);
}

Status SequenceKv::reserve(size_t count) {
  if (count == 0) return {};
  hold();
  const auto length = static_cast<size_t>(length_);
  if (count > std::numeric_limits<int32_t>::max() - length) {
    return fail(ErrorCode::kOutOfMemory, "a sequence of {} tokens cannot grow by {}", length,
                count);
  }
  const size_t blocks = PageMap::blocks_of(length + count);
  const size_t last = length / kPageTokens;  // block of the first new token
  const bool partial = length % kPageTokens != 0;
  PageLoan loan(*pool_);
  std::vector<char> copies(tables_.size());
  uint64_t needed = 0;
  for (uint32_t layer = 0; layer < tables_.size(); ++layer) {
    const auto& table = tables_[layer];
    if (partial && table[last] == kNoPage) {
      return fail(ErrorCode::kUnsupported,
                  "token {} of layer {} would go into an evicted page; truncate to {} first",
                  length, layer, last * kPageTokens);
    }
    copies[layer] = partial && pool_->references(layer, table[last]) > 1;
    needed += (copies[layer] ? 1 : 0) + blocks - std::min(blocks, table.size());
  }
  REPRISE_CHECK(check_room(needed, count));
  for (uint32_t layer = 0; layer < tables_.size(); ++layer) {
    const size_t grow = blocks - std::min(blocks, tables_[layer].size());
    for (size_t i = 0; i < grow + (copies[layer] ? 1 : 0); ++i) {
      if (!loan.take(layer)) {
        return fail(ErrorCode::kOutOfMemory, "the system has no memory for {} more tokens", count);
      }
    }
  }
  if (partial && resting_) REPRISE_CHECK(fetch_shared(last, copies));
  const uint64_t now = pool_->now();
  for (uint32_t layer = 0; layer < tables_.size(); ++layer) {
    auto& table = tables_[layer];
    const std::vector<PageId> taken = loan.keep(layer);
    auto fresh = taken.begin();
    if (copies[layer]) {
      pool_->copy(layer, *fresh, table[last]);
      change_version();
      pool_->release(layer, std::exchange(table[last], *fresh++));  // in use here, or fetched
    }
    table.insert(table.end(), fresh, taken.end());
    for (const PageId page : taken) {
      if (resting_) pool_->rest(layer, page, now);
    }
  }
  return {};
}

/// Holds the pages of a block in those layers in which they are to be copied.
Status SequenceKv::fetch_shared(size_t block, std::span<const char> layers) {
  for (uint32_t layer = 0; layer < tables_.size(); ++layer) {
    if (!layers[layer]) continue;
    const Status status = pool_->fetch(layer, {&tables_[layer][block], 1});
    if (status) continue;
    while (layer-- > 0) {
      if (layers[layer]) pool_->rest(layer, tables_[layer][block], pool_->now());
    }
    return status;
  }
  return {};
}

Status SequenceKv::reserve_pages(int32_t length, const PageMap& map) {
  hold();
  uint64_t needed = 0;
  for (uint32_t layer = 0; layer < map.layers(); ++layer) needed += map.count(layer);
  REPRISE_CHECK(check_room(needed, static_cast<size_t>(length)));
  for (uint32_t layer = 0; layer < map.layers(); ++layer) {
    tables_[layer].assign(map.blocks(), kNoPage);
    for (size_t block = 0; block < map.blocks(); ++block) {
      if (!map.has(layer, block)) continue;
      tables_[layer][block] = pool_->allocate(layer);
      if (tables_[layer][block] == kNoPage) {
        release_from(0);
        return fail(ErrorCode::kOutOfMemory, "the system has no memory for {} tokens", length);
      }
    }
  }
  length_ = length;
  change_version();
  return {};
}

Status SequenceKv::take_pages(uint32_t layer, std::span<const uint32_t> blocks) {
  REPRISE_CHECK(check_room(blocks.size(), blocks.size() * kPageTokens));
  PageLoan loan(*pool_);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (loan.take(layer)) continue;
    return fail(ErrorCode::kOutOfMemory, "the system has no memory for pages of layer {}", layer);
  }
  const std::vector<PageId> taken = loan.keep(layer);
  for (size_t i = 0; i < blocks.size(); ++i) tables_[layer][blocks[i]] = taken[i];
  change_version();
  return {};
}

void SequenceKv::rest_pages(uint32_t layer, std::span<const uint32_t> blocks) {
  const uint64_t now = pool_->now();
  for (const uint32_t block : blocks) pool_->rest(layer, tables_[layer][block], now - block);
}

Status SequenceKv::own_page(uint32_t layer, size_t block) {
  hold();
  PageId& own = tables_[layer][block];
  if (own != kNoPage && pool_->references(layer, own) == 1) return {};
  REPRISE_CHECK(check_room(1, kPageTokens));
  const PageId fresh = pool_->allocate(layer);
  if (fresh == kNoPage) {
    return fail(ErrorCode::kOutOfMemory, "the system has no memory for a page of layer {}", layer);
  }
  if (own != kNoPage) {
    pool_->copy(layer, fresh, own);
    pool_->release(layer, own);
  }
  BlockRange& hole = holes_[layer];
  if (block >= hole.begin && block < hole.end) hole = {};
  own = fresh;
  change_version();
  return {};
}

void SequenceKv::release_from(size_t block) {
  for (uint32_t layer = 0; layer < tables_.size(); ++layer) {
    auto& table = tables_[layer];
    if (table.size() > block) change_version();
    // From the back, so that the pool hands them out in ascending order again.
    for (size_t i = table.size(); i-- > block;) {
      if (table[i] != kNoPage) pool_->release(layer, table[i], !resting_);
    }
    table.resize(std::min(table.size(), block));
    BlockRange& hole = holes_[layer];
    hole.end = std::min(hole.end, block);
    if (hole.begin >= hole.end) hole = {};
  }
}

void SequenceKv::truncate(int32_t length) {
  length_ = std::clamp(length, 0, length_);
  release_from(PageMap::blocks_of(static_cast<size_t>(length_)));
}

size_t SequenceKv::evict(uint32_t layer, int32_t begin, int32_t end) {
  const auto tokens_begin = static_cast<size_t>(std::max(begin, 0));
  const auto tokens_end = static_cast<size_t>(std::clamp(end, 0, length_));
  const size_t first = PageMap::blocks_of(tokens_begin);
  const size_t last = tokens_end / kPageTokens;
  if (first >= last) return 0;
  auto& table = tables_[layer];
  BlockRange& hole = holes_[layer];
  size_t freed = 0;
  for (size_t block = first; block < last; ++block) {
    if (block >= hole.begin && block < hole.end) {
      block = hole.end - 1;
    } else if (table[block] != kNoPage) {
      pool_->release(layer, std::exchange(table[block], kNoPage), !resting_);
      ++freed;
    }
  }
  const bool touching = first <= hole.end && hole.begin <= last && hole.end > 0;
  if (touching)
    hole = {std::min(first, hole.begin), std::max(last, hole.end)};
  else if (last - first > hole.end - hole.begin)
    hole = {first, last};
  return freed;
}

PageMap SequenceKv::page_map() const {
  PageMap map(static_cast<uint32_t>(tables_.size()),
              PageMap::blocks_of(static_cast<size_t>(length_)));
  for (uint32_t layer = 0; layer < map.layers(); ++layer) {
    for (size_t block = 0; block < map.blocks(); ++block) {
      if (tables_[layer][block] != kNoPage) map.set(layer, block);
    }
  }
  return map;
}

uint64_t SequenceKv::bytes() const {
  uint64_t pages = 0;
  for (const auto& table : tables_) {
    pages += table.size() - static_cast<size_t>(std::count(table.begin(), table.end(), kNoPage));
  }
  return pages * pool_->page_bytes();
}

}  // namespace reprise
