#include "methods/reattention/agreement.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/state_bytes.h"

namespace reprise {
namespace {

struct Region {
  int32_t page;
  int32_t weight;
};

/// Weights of pages, ascending.
std::vector<Region> joined(std::vector<Region> votes) {
  std::sort(votes.begin(), votes.end(), [](auto& a, auto& b) { return a.page < b.page; });
  std::vector<Region> pages;
  for (const Region& vote : votes) {
    if (!pages.empty() && pages.back().page == vote.page) {
      pages.back().weight += vote.weight;
    } else {
      pages.push_back(vote);
    }
  }
  return pages;
}

}  // namespace

const std::array<int32_t, Agreement::kRows>& Agreement::weights() {
  static const std::array<int32_t, kRows> all = [] {
    std::array<int32_t, kRows> weights{};
    double weight = kUnit;
    for (int32_t& each : weights) {
      each = static_cast<int32_t>(std::lround(weight));
      weight *= kFade;
    }
    return weights;
  }();
  return all;
}

std::vector<int32_t> Agreement::regions(int32_t row, double votes) const {
  std::vector<Region> recent;
  for_votes([&](int32_t voted, int32_t page) {
    const int32_t back = row - voted;
    if (back < kRows) recent.push_back({page, weights()[static_cast<size_t>(back)]});
  });
  const std::vector<Region> pages = joined(std::move(recent));
  std::vector<Region> found;
  for (size_t i = 0; i < pages.size(); ++i) {
    const bool next = i + 1 < pages.size() && pages[i + 1].page == pages[i].page + 1;
    const int32_t weight = pages[i].weight + (next ? pages[i + 1].weight : 0);
    if (weight >= votes * kUnit) found.push_back({pages[i].page, weight});
  }
  std::sort(found.begin(), found.end(), [](const Region& a, const Region& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.page > b.page;
  });
  std::vector<int32_t> regions;
  for (const Region& region : found) {
    const bool apart = std::none_of(regions.begin(), regions.end(), [&](int32_t page) {
      return std::abs(page - region.page) < kRegionPages;
    });
    if (apart && regions.size() < kRegions) regions.push_back(region.page);
  }
  return regions;
}

void Agreement::truncate(int32_t length) {
  std::erase_if(votes_, [&](const Vote& vote) { return vote.row >= length; });
}

std::string Agreement::save() const {
  StateWriter out;
  out.value(uint64_t{votes_.size()});
  out.array(votes_.data(), votes_.size());
  return out.take();
}

bool Agreement::restore(std::string_view state, int32_t length, size_t heads) {
  StateReader in(state);
  in.array(votes_, in.value<uint64_t>());
  int32_t row = 0;
  size_t of_row = 0;
  for (const Vote& vote : votes_) {
    of_row = vote.row == row ? of_row + 1 : 1;
    in.require(vote.row >= row && vote.row < length && of_row <= heads);
    in.require(vote.page >= 0 && vote.page * kPage < vote.row);
    row = vote.row;
  }
  if (!in.ended()) votes_.clear();
  return in.ended();
}

}  // namespace reprise
