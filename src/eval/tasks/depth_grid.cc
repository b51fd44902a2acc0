#include "eval/tasks/depth_grid.h"

#include <fmt/format.h>

#include <numeric>

namespace reprise::eval {
namespace {

constexpr size_t kDepths = 11, kTrials = 10;

}  // namespace

double GridCell::depth() const { return static_cast<double>(step) / (kDepths - 1); }

std::string GridCell::id() const {
  return fmt::format("length-{}-depth-{:.0f}-trial-{}", length, 100 * depth(), trial);
}

std::vector<GridCell> grid_cells(std::span<const uint32_t> lengths, size_t limit) {
  // Lengths take turns, and depths advance by a step that visits all of them.
  constexpr size_t kStep = 7;
  static_assert(std::gcd(kStep, kDepths) == 1);
  std::vector<GridCell> cells(limit > 0 ? limit : lengths.size() * kDepths * kTrials);
  for (size_t i = 0; i < cells.size(); ++i) {
    const size_t length = i % lengths.size(), round = i / lengths.size();
    cells[i] = {lengths[length], (round * kStep + length * 2) % kDepths, round / kDepths};
  }
  return cells;
}

}  // namespace reprise::eval
