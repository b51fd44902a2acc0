// KV of past prompts, found again by their tokens: an edited prompt re-reads only what changed.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/sequence_kv.h"

namespace reprise {

/// A tree over full pages of tokens. A child is found by the hash of its 16 tokens under its parent
/// and confirmed by comparing parent and tokens, so a collision is a miss. Nodes are listed by last
/// use, parents before their children, so the last of the list is a least recently used leaf.
class PrefixCache {
 public:
  /// Hash of 16 tokens under a parent node.
  using HashFn = uint64_t (*)(std::span<const int32_t> tokens, uint64_t parent);

  explicit PrefixCache(PagePool& pool, HashFn hash = &hash_tokens);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  /// Shares the full pages of tokens [0, sequence.length()) with the tree; what it already holds is
  /// kept. Sequences with evicted pages are not inserted beyond the first hole of any layer.
  void insert(std::span<const int32_t> tokens, const SequenceKv& sequence);
  /// A sequence over the longest stored prefix of tokens (a multiple of 16, at most max_tokens), to
  /// be woken where pages may lie outside of memory.
  SequenceKv match(std::span<const int32_t> tokens, size_t max_tokens);
  /// Gives up least recently used pages until free_pages() >= pages; returns whether that worked.
  /// Pages that others use too stay, unless they stand in the way of pages that only the tree uses.
  bool make_room(uint64_t pages);
  void clear();

  uint64_t bytes() const { return nodes() * pool_->layers() * pool_->page_bytes(); }
  uint64_t nodes() const { return index_.size(); }

  static uint64_t hash_tokens(std::span<const int32_t> tokens, uint64_t parent);

 private:
  using NodeId = uint32_t;
  static constexpr NodeId kRoot = 0;
  struct Node {
    uint64_t hash = 0;
    NodeId parent = kRoot;
    NodeId newer = kRoot, older = kRoot;  // neighbours in the list; the root closes it to a ring
    uint32_t children = 0;
    int32_t tokens[kPageTokens] = {};
  };

  std::span<PageId> pages(NodeId node);  // [n_layer]
  NodeId find(NodeId parent, std::span<const int32_t> tokens, uint64_t hash) const;
  /// The nodes of the longest stored prefix of at most count full pages.
  std::vector<NodeId> walk(std::span<const int32_t> tokens, size_t count) const;
  NodeId add(NodeId parent, std::span<const int32_t> tokens, uint64_t hash);
  void unlink(NodeId node);
  void link_newest(NodeId node);
  /// Makes the nodes of a path from the root the most recently used.
  void touch(std::span<const NodeId> path);
  /// Takes the sequence's pages where those of a node were lost.
  void replace_lost(NodeId node, const SequenceKv& sequence, size_t block);
  bool frees_memory(NodeId node);
  void remove(NodeId node);

  PagePool* pool_;
  HashFn hash_;
  std::vector<Node> nodes_;                     // [0] is the root
  std::vector<PageId> pages_;                   // [nodes][n_layer]
  std::vector<NodeId> unused_;                  // slots of nodes_ to take again
  std::unordered_map<uint64_t, NodeId> index_;  // by hash
};

}  // namespace reprise
