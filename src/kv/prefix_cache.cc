#include "kv/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>

namespace reprise {

uint64_t PrefixCache::hash_tokens(std::span<const int32_t> tokens, uint64_t parent) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent);
}

PrefixCache::PrefixCache(PagePool& pool, HashFn hash)
    : pool_(&pool), hash_(hash), nodes_(1), pages_(pool.layers(), kNoPage) {}

PrefixCache::~PrefixCache() { clear(); }

std::span<PageId> PrefixCache::pages(NodeId node) {
  return std::span(pages_).subspan(size_t{node} * pool_->layers(), pool_->layers());
}

PrefixCache::NodeId PrefixCache::find(NodeId parent, std::span<const int32_t> tokens,
                                      uint64_t hash) const {
  const auto entry = index_.find(hash);
  if (entry == index_.end()) return kRoot;
  const Node& node = nodes_[entry->second];
  const bool same = node.parent == parent && std::ranges::equal(node.tokens, tokens);
  return same ? entry->second : kRoot;
}

std::vector<PrefixCache::NodeId> PrefixCache::walk(std::span<const int32_t> tokens,
                                                   size_t count) const {
  std::vector<NodeId> path;
  NodeId parent = kRoot;
  while (path.size() < count) {
    const auto block = tokens.subspan(path.size() * kPageTokens, kPageTokens);
    parent = find(parent, block, hash_(block, parent));
    if (parent == kRoot) break;
    path.push_back(parent);
  }
  return path;
}

PrefixCache::NodeId PrefixCache::add(NodeId parent, std::span<const int32_t> tokens,
                                     uint64_t hash) {
  NodeId id = 0;
  if (unused_.empty()) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
    pages_.resize(pages_.size() + pool_->layers());
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  Node& node = nodes_[id];
  node.hash = hash;
  node.parent = parent;
  node.children = 0;
  std::ranges::copy(tokens, node.tokens);
  ++nodes_[parent].children;
  index_.emplace(hash, id);
  link_newest(id);
  return id;
}

void PrefixCache::unlink(NodeId node) {
  nodes_[nodes_[node].newer].older = nodes_[node].older;
  nodes_[nodes_[node].older].newer = nodes_[node].newer;
}

void PrefixCache::link_newest(NodeId node) {
  const NodeId second = nodes_[kRoot].older;
  nodes_[node].newer = kRoot;
  nodes_[node].older = second;
  nodes_[second].newer = node;
  nodes_[kRoot].older = node;
}

void PrefixCache::touch(std::span<const NodeId> path) {
  for (size_t i = path.size(); i-- > 0;) {
    unlink(path[i]);
    link_newest(path[i]);
  }
}

void PrefixCache::insert(std::span<const int32_t> tokens, const SequenceKv& sequence) {
  const size_t blocks =
      std::min(tokens.size(), static_cast<size_t>(sequence.length())) / kPageTokens;
  const auto present = [&](size_t block) {
    return std::ranges::all_of(sequence.tables_,
                               [&](const auto& table) { return table[block] != kNoPage; });
  };
  std::vector<NodeId> path = walk(tokens, blocks);
  for (size_t block = 0; block < path.size(); ++block) replace_lost(path[block], sequence, block);
  for (size_t block = path.size(); block < blocks && present(block); ++block) {
    const NodeId parent = path.empty() ? kRoot : path.back();
    const auto key = tokens.subspan(block * kPageTokens, kPageTokens);
    const uint64_t hash = hash_(key, parent);
    if (index_.contains(hash)) break;  // a collision with another block: what follows is not stored
    const NodeId id = add(parent, key, hash);
    for (uint32_t layer = 0; layer < pool_->layers(); ++layer) {
      pages(id)[layer] = sequence.tables_[layer][block];
      pool_->retain(layer, pages(id)[layer], false);
    }
    path.push_back(id);
  }
  touch(path);
}

void PrefixCache::replace_lost(NodeId node, const SequenceKv& sequence, size_t block) {
  const auto own = pages(node);
  for (uint32_t layer = 0; layer < own.size(); ++layer) {
    const PageId page = sequence.tables_[layer][block];
    if (pool_->has(layer, own[layer]) || page == kNoPage) continue;
    pool_->retain(layer, page, false);
    pool_->release(layer, own[layer], false);
    own[layer] = page;
  }
}

SequenceKv PrefixCache::match(std::span<const int32_t> tokens, size_t max_tokens) {
  const std::vector<NodeId> path = walk(tokens, std::min(tokens.size(), max_tokens) / kPageTokens);
  touch(path);
  SequenceKv sequence(*pool_);
  for (uint32_t layer = 0; layer < pool_->layers(); ++layer) {
    auto& table = sequence.tables_[layer];
    table.reserve(path.size());
    for (const NodeId node : path) {
      table.push_back(pages(node)[layer]);
      pool_->retain(layer, table.back());
    }
  }
  sequence.length_ = static_cast<int32_t>(path.size() * kPageTokens);
  return sequence;
}

bool PrefixCache::frees_memory(NodeId node) {
  const auto own = pages(node);
  for (uint32_t layer = 0; layer < own.size(); ++layer) {
    if (pool_->references(layer, own[layer]) == 1) return true;
  }
  return false;
}

void PrefixCache::remove(NodeId node) {
  const auto own = pages(node);
  for (uint32_t layer = 0; layer < own.size(); ++layer) {
    pool_->release(layer, own[layer], false);
  }
  --nodes_[nodes_[node].parent].children;
  index_.erase(nodes_[node].hash);
  unlink(node);
  unused_.push_back(node);
}

bool PrefixCache::make_room(uint64_t wanted) {
  // Children are older than their parents: one pass from the oldest meets every node as a leaf,
  // unless a page that others use lies below it.
  size_t blocked = 0;
  NodeId node = nodes_[kRoot].newer;
  while (node != kRoot && pool_->free_pages() < wanted) {
    const NodeId newer = nodes_[node].newer;
    if (frees_memory(node)) {
      if (nodes_[node].children == 0)
        remove(node);
      else
        ++blocked;
    }
    node = newer;
  }
  while (blocked > 0 && pool_->free_pages() < wanted) {
    const NodeId oldest = nodes_[kRoot].newer;
    if (frees_memory(oldest)) --blocked;
    remove(oldest);
  }
  return pool_->free_pages() >= wanted;
}

void PrefixCache::clear() {
  while (nodes_[kRoot].newer != kRoot) remove(nodes_[kRoot].newer);
}

}  // namespace reprise
