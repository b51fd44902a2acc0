// Which of a fixed set of strings a text starts with.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace reprise {

class ByteTrie {
 public:
  using Entry = std::pair<std::string_view, int32_t>;

  ByteTrie() { root_.fill(kNoNode); }
  /// Values must not be negative; of equal keys the last entry counts. Empty keys are ignored.
  explicit ByteTrie(std::vector<Entry> entries);

  bool empty() const { return nodes_.empty(); }
  /// False when no key starts with this byte.
  bool may_start(uint8_t byte) const { return root_[byte] != kNoNode; }

  /// Calls visit(length, value) for each key that text starts with, shortest first.
  template <class Visit>
  void prefixes(std::string_view text, Visit&& visit) const {
    if (text.empty()) return;
    uint32_t node = root_[static_cast<uint8_t>(text[0])];
    for (size_t length = 1; node != kNoNode; ++length) {
      if (nodes_[node].value >= 0) visit(length, nodes_[node].value);
      if (length == text.size()) return;
      node = child(node, static_cast<uint8_t>(text[length]));
    }
  }

 private:
  static constexpr uint32_t kNoNode = UINT32_MAX;
  struct Node {
    uint32_t first_child = 0;  // children are consecutive, ordered by label
    uint16_t children = 0;
    uint8_t label = 0;
    int32_t value = -1;
  };

  uint32_t child(uint32_t node, uint8_t label) const;

  std::array<uint32_t, 256> root_;
  std::vector<Node> nodes_;
};

}  // namespace reprise
