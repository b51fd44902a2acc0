// Where heads agree that something is to be found: a memory of votes.
//
// In running text the best far keys that stand out (ReAttentionOptions::lead) lie anywhere; where a
// text asks for something, those of many heads, layers and rows lie in one place. A region, two
// pages that follow each other, in which votes of the rows before and of the layers before of the
// row itself weigh enough (a vote one, 0.9 of it a row later, and so on), is read by all layers.
// Of very many keys some stand out by chance, and fewer heads lead, but votes meet by chance in
// fewer places: beyond kNear tokens fewer votes are enough. The rule and its numbers are from our
// own measurements (bench/results/2026-11-24-reattention-agree.md
// and, beyond kNear, 2026-11-25-reattention-grid.md).
//
// It follows from a sequence's own rows, wherever it was cut, copied or saved.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kv_page.h"
#include "reprise/error.h"

namespace reprise {

class Agreement {
  static constexpr int32_t kPage = kernels::kPageTokens;

 public:
  static constexpr int32_t kRows = 32;  // 0.9 to their number is 0.03
  static constexpr double kFade = 0.9;
  static constexpr int32_t kUnit = 1024;  // weight of a vote of the row itself
  static constexpr size_t kRegions = 4;   // that are read at most
  static constexpr int32_t kRegionPages = 2;
  static constexpr size_t kVotes = 4096;  // the last ones, of which a device knows
  static constexpr int32_t kNear = 1 << 20;
  static constexpr int32_t kFewest = 4;  // no less than this part of the votes is enough

  /// The key in the middle of the region that begins with a page.
  static constexpr int32_t middle_of(int32_t page) { return (page + kRegionPages / 2) * kPage; }
  /// Of a vote, by rows back, in parts of kUnit.
  static const std::array<int32_t, kRows>& weights();

  /// A key that won in a head of a row. Rows come in ascending order.
  void add(int32_t row, int32_t key) { votes_.push_back({row, key / kPage}); }
  /// Weight that is enough at a row where so many votes are up to kNear tokens.
  static int32_t enough(int32_t row, double votes);
  /// First pages of the regions that have enough at a row, of which no two share a page; the
  /// heaviest ones, of equal ones the later.
  std::vector<int32_t> regions(int32_t row, double votes) const;
  /// Forgets rows from length on.
  void truncate(int32_t length);

  std::string save() const;
  /// False, and nothing is known, where it is not what save() wrote of a sequence of so many tokens
  /// in whose rows at most so many heads voted.
  bool restore(std::string_view state, int32_t length, size_t heads);
  /// The same of a page.
  void add_page(int32_t row, int32_t page) { votes_.push_back({row, page}); }
  /// f(row, page) of the last kVotes votes.
  template <class F>
  void for_votes(F&& f) const {
    for (size_t i = first_known(); i < votes_.size(); ++i) f(votes_[i].row, votes_[i].page);
  }
  size_t bytes() const { return votes_.capacity() * sizeof(Vote); }

 private:
  size_t first_known() const { return votes_.size() - std::min(votes_.size(), kVotes); }

  struct Vote {
    int32_t row;
    int32_t page;
  };
  struct PageWeight {
    int32_t page;
    int32_t weight;
  };
  /// What was counted for a row, as its layers ask one after the other.
  struct Count {
    int32_t row = -1;
    size_t first = 0, end = 0;      // of the votes that are counted
    std::vector<PageWeight> pages;  // ascending

    void add(const Vote& vote, int32_t sign);
  };
  const std::vector<PageWeight>& pages_at(int32_t row) const;

  std::vector<Vote> votes_;  // all of them: any row may become the last
  mutable Count count_;
};

}  // namespace reprise
