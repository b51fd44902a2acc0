// When heads whose best far key does not stand out read far spans too: a gate with memory.
//
// Few heads find what a question asks for, and all of them are needed to answer it; in running
// text all of them only disturb. One row does not tell the two apart, about ten rows together do:
// evidence is the share of heads that stand out (ReAttentionOptions::lead), over the rows before
// with weights 0.9, 0.81, ..., and over the layers before of the row itself. The rule and its
// numbers are from our own measurements (bench/results/2026-11-23-h200-reattention-gate.md).
//
// Only rows that choose for themselves count; others are rows at which no head stood out. So what
// the gate says follows from a sequence's own rows, wherever it was cut, copied or saved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/error.h"

namespace reprise {

class Gate {
 public:
  static constexpr int32_t kRows = 128;  // 0.9 to their number is nothing
  static constexpr double kFade = 0.9;
  static constexpr double kPast = kFade / (1.0 - kFade);  // the sum of the weights of rows before

  /// Heads that stood out in one more layer of a row. Rows come in ascending order.
  void add(int32_t row, uint32_t heads);
  /// Heads a row by what was added: the mean over the rows before, and what a row has more by its
  /// layers so far.
  double evidence(int32_t row) const;
  /// Forgets rows from length on.
  void truncate(int32_t length);

  std::string save() const;
  /// False, and nothing is known, where it is not what save() wrote of a sequence of so many tokens
  /// in whose rows at most so many heads stood out.
  bool restore(std::string_view state, int32_t length, size_t heads);
  size_t bytes() const { return rows_.capacity() * sizeof(Row); }
  /// Behind the last row at which heads stood out; 0: there is none.
  int32_t end() const { return rows_.empty() ? 0 : rows_.back().position + 1; }
  /// f(row, heads) of the rows from first on at which heads stood out.
  template <class F>
  void for_rows(int32_t first, F&& f) const {
    for (const Row& row : rows_) {
      if (row.position >= first) f(row.position, row.heads);
    }
  }

 private:
  struct Row {
    int32_t position;
    uint32_t heads;
  };
  std::vector<Row> rows_;  // those at which heads stood out, all of them: any may become the last
};

}  // namespace reprise
