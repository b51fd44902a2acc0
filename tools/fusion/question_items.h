// Questions over several passages, from files of several forms.
#pragma once

#include <string>
#include <vector>

namespace reprise {

struct Item {
  std::string question;
  std::vector<std::string> answers, passages;
};

/// FILE of fusion_bench.
std::vector<Item> read_items(const std::string& path);

/// The item's passages among those of others, its own from another place on for every item.
std::vector<std::string> passages_of(const std::vector<Item>& items, size_t index, size_t count);

}  // namespace reprise
