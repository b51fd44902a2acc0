#include "text/byte_trie.h"

#include <algorithm>

namespace reprise {

ByteTrie::ByteTrie(std::vector<Entry> entries) : ByteTrie() {
  std::ranges::stable_sort(entries, {}, &Entry::first);
  struct Range {
    size_t begin, end, depth;
    uint32_t node;  // kNoNode: the root
  };
  // Breadth first, so that the children of a node stand next to each other.
  std::vector<Range> queue{{0, entries.size(), 0, kNoNode}};
  for (size_t at = 0; at < queue.size(); ++at) {
    const Range range = queue[at];
    size_t begin = range.begin;
    while (begin < range.end && entries[begin].first.size() == range.depth) {
      if (range.node != kNoNode) nodes_[range.node].value = entries[begin].second;
      ++begin;
    }
    if (range.node != kNoNode)
      nodes_[range.node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < range.end) {
      const auto label = static_cast<uint8_t>(entries[begin].first[range.depth]);
      size_t end = begin + 1;
      while (end < range.end && static_cast<uint8_t>(entries[end].first[range.depth]) == label) {
        ++end;
      }
      const auto node = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({0, 0, label, -1});
      if (range.node == kNoNode) {
        root_[label] = node;
      } else {
        ++nodes_[range.node].children;
      }
      queue.push_back({begin, end, range.depth + 1, node});
      begin = end;
    }
  }
}

uint32_t ByteTrie::child(uint32_t node, uint8_t label) const {
  const auto first = nodes_.begin() + nodes_[node].first_child;
  const auto last = first + nodes_[node].children;
  const auto found = std::ranges::lower_bound(first, last, label, {}, &Node::label);
  if (found == last || found->label != label) return kNoNode;
  return static_cast<uint32_t>(found - nodes_.begin());
}

}  // namespace reprise
