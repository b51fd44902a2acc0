#include "kv/session_format.h"

#include <algorithm>
#include <cstddef>

#include "base/checked.h"
#include "base/try.h"

namespace reprise {
namespace {

constexpr uint64_t kBlockBytes = 1 << 20;  // progress, cancel and damage are told to this precision
constexpr uint64_t kChecksumBytes = sizeof(uint64_t);

}  // namespace

uint64_t header_checksum(const SessionHeader& header) {
  return XXH3_64bits(&header, offsetof(SessionHeader, checksum));
}

SectionChecksums::SectionChecksums(uint64_t header_checksum)
    : all_{header_checksum}, state_(XXH3_createState()) {}

uint64_t SectionChecksums::next(Parts section) {
  XXH3_64bits_reset_withSeed(state_.get(), all_.size());
  for (const iovec& part : section) {
    XXH3_64bits_update(state_.get(), part.iov_base, part.iov_len);
  }
  return all_.emplace_back(XXH3_64bits_digest(state_.get()));
}

uint64_t SectionChecksums::footer() const {
  return XXH3_64bits(all_.data(), all_.size() * sizeof(all_[0]));
}

std::optional<uint64_t> session_file_bytes(const SessionHeader& header, const PageMap& map) {
  CheckedSize bytes = CheckedSize(sizeof(SessionHeader)) + sizeof(SessionFooter);
  bytes = bytes + CheckedSize(header.token_count) * sizeof(int32_t) + kChecksumBytes;
  bytes = bytes + header.state_bytes + kChecksumBytes;
  bytes = bytes + CheckedSize(map.layers()) * PageMap::row_bytes(map.blocks()) + kChecksumBytes;
  for (uint32_t layer = 0; layer < map.layers(); ++layer) {
    const uint64_t pages = map.count(layer);
    const uint64_t whole = pages / header.pages_per_block;
    const bool rest = pages % header.pages_per_block > 0;
    const CheckedSize blocks = CheckedSize(whole) + (rest ? 1 : 0);
    bytes = bytes + CheckedSize(pages) * header.page_bytes + blocks * kChecksumBytes;
  }
  return bytes.value();
}

SessionHeader make_header(const KvIdentity& identity, const SavedSession& saved,
                          const SequenceKv& sequence, const PageMap& map) {
  const PagePool& pool = sequence.pool();
  SessionHeader header;
  header.model = identity.model;
  header.tokenizer = identity.tokenizer;
  header.numerics = identity.numerics;
  header.kv_type = static_cast<uint32_t>(pool.layout().type);
  header.n_kv_head = pool.layout().n_kv_head;
  header.head_dim = pool.layout().head_dim;
  header.page_bytes = pool.page_bytes();
  header.n_layer = pool.layers();
  header.token_count = saved.tokens.size();
  header.state_bytes = saved.state.size();
  for (uint32_t layer = 0; layer < map.layers(); ++layer) header.page_count += map.count(layer);
  header.pages_per_block =
      std::clamp<uint64_t>(kBlockBytes / pool.page_bytes(), 1, kMaxPagesPerBlock);
  header.file_bytes = session_file_bytes(header, map).value_or(0);
  header.checksum = header_checksum(header);
  return header;
}

Status for_each_block(
    const PageMap& map, uint64_t pages_per_block,
    const std::function<Status(uint32_t layer, std::span<const uint32_t> blocks)>& fn) {
  std::vector<uint32_t> present;
  for (uint32_t layer = 0; layer < map.layers(); ++layer) {
    present.clear();
    for (size_t block = 0; block < map.blocks(); ++block) {
      if (map.has(layer, block)) present.push_back(static_cast<uint32_t>(block));
    }
    for (size_t first = 0; first < present.size(); first += pages_per_block) {
      const size_t count = std::min<size_t>(pages_per_block, present.size() - first);
      REPRISE_CHECK(fn(layer, std::span(present).subspan(first, count)));
    }
  }
  return {};
}

bool BlockPages::partial(std::span<const uint32_t> blocks) const {
  return tokens_ % kPageTokens != 0 && blocks.back() == tokens_ / kPageTokens;
}

bool BlockPages::in_memory(uint32_t layer, std::span<const uint32_t> blocks) const {
  return std::ranges::all_of(blocks, [&](uint32_t block) {
    return sequence_.pool().in_memory(layer, sequence_.pages(layer)[block]);
  });
}

// Neighbours are joined.
void BlockPages::append(uint32_t layer, std::span<const uint32_t> blocks,
                        std::vector<iovec>& parts) const {
  const size_t page_bytes = sequence_.pool().page_bytes();
  for (const uint32_t block : blocks) {
    std::byte* page = sequence_.page(layer, block);
    const bool joined =
        !parts.empty() &&
        static_cast<std::byte*>(parts.back().iov_base) + parts.back().iov_len == page;
    if (joined)
      parts.back().iov_len += page_bytes;
    else
      parts.push_back({page, page_bytes});
  }
}

Result<std::vector<iovec>> BlockPages::fetch(uint32_t layer, std::span<const uint32_t> blocks) {
  PagePool& pool = sequence_.pool();
  const bool clear = partial(blocks);
  const bool direct = pool.memory().reachable() && in_memory(layer, blocks);
  std::vector<iovec> parts;
  const auto in_place = blocks.first(!direct ? 0 : blocks.size() - (clear ? 1 : 0));
  append(layer, in_place, parts);
  const auto copied = blocks.subspan(in_place.size());
  copy_.resize(copied.size() * pool.page_bytes());
  for (size_t i = 0; i < copied.size(); ++i) {
    REPRISE_CHECK(
        pool.read(&copy_[i * pool.page_bytes()], layer, sequence_.pages(layer)[copied[i]]));
  }
  if (clear) {
    pool.clear_slots(copy_.data() + copy_.size() - pool.page_bytes(), tokens_ % kPageTokens);
  }
  if (!copy_.empty()) parts.push_back({copy_.data(), copy_.size()});
  return parts;
}

std::vector<iovec> BlockPages::room(uint32_t layer, std::span<const uint32_t> blocks) {
  std::vector<iovec> parts;
  if (sequence_.pool().memory().reachable()) {
    append(layer, blocks, parts);
    return parts;
  }
  copy_.resize(blocks.size() * sequence_.pool().page_bytes());
  parts.push_back({copy_.data(), copy_.size()});
  return parts;
}

Status BlockPages::store(uint32_t layer, std::span<const uint32_t> blocks) {
  PagePool& pool = sequence_.pool();
  const bool direct = pool.memory().reachable();
  if (partial(blocks)) {
    std::byte* last = direct ? sequence_.page(layer, blocks.back())
                             : copy_.data() + copy_.size() - pool.page_bytes();
    pool.clear_slots(last, tokens_ % kPageTokens);
  }
  if (direct) return {};
  std::vector<PageId> pages;
  for (const uint32_t block : blocks) pages.push_back(sequence_.pages(layer)[block]);
  return pool.write(layer, pages, copy_.data());
}

}  // namespace reprise
