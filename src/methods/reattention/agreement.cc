#include "methods/reattention/agreement.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/state_bytes.h"

namespace reprise {
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

void Agreement::Count::add(const Vote& vote, int32_t sign) {
  const int32_t back = row - vote.row;
  if (back < 0 || back >= kRows) return;
  const int32_t weight = sign * weights()[static_cast<size_t>(back)];
  const auto at = std::lower_bound(pages.begin(), pages.end(), vote.page,
                                   [](const PageWeight& a, int32_t b) { return a.page < b; });
  if (at == pages.end() || at->page != vote.page) {
    pages.insert(at, {vote.page, weight});
  } else if ((at->weight += weight) == 0) {
    pages.erase(at);
  }
}

const std::vector<Agreement::PageWeight>& Agreement::pages_at(int32_t row) const {
  const size_t first = first_known();
  if (count_.row != row || count_.end > votes_.size()) count_ = {row, first, first, {}};
  for (; count_.end < votes_.size(); ++count_.end) count_.add(votes_[count_.end], 1);
  for (; count_.first < first; ++count_.first) count_.add(votes_[count_.first], -1);
  return count_.pages;
}

int32_t Agreement::enough(int32_t row, double votes) {
  const auto near = static_cast<int32_t>(std::ceil(votes * kUnit));
  const auto far = static_cast<int32_t>(int64_t{near} * kNear / std::max(kNear, row + 1));
  return std::max(near / kFewest, far);
}

std::vector<int32_t> Agreement::regions(int32_t row, double votes) const {
  const int32_t least = enough(row, votes);
  const std::vector<PageWeight>& pages = pages_at(row);
  std::vector<PageWeight> found;
  for (size_t i = 0; i < pages.size(); ++i) {
    const bool next = i + 1 < pages.size() && pages[i + 1].page == pages[i].page + 1;
    const int32_t weight = pages[i].weight + (next ? pages[i + 1].weight : 0);
    if (weight >= least) found.push_back({pages[i].page, weight});
  }
  std::sort(found.begin(), found.end(), [](const PageWeight& a, const PageWeight& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.page > b.page;
  });
  std::vector<int32_t> regions;
  for (const PageWeight& region : found) {
    const bool apart = std::none_of(regions.begin(), regions.end(), [&](int32_t page) {
      return std::abs(page - region.page) < kRegionPages;
    });
    if (apart && regions.size() < kRegions) regions.push_back(region.page);
  }
  return regions;
}

void Agreement::truncate(int32_t length) {
  std::erase_if(votes_, [&](const Vote& vote) { return vote.row >= length; });
  count_ = {};
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
  count_ = {};
  return in.ended();
}

}  // namespace reprise
