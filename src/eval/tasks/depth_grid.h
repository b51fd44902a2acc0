// Cells of a grid over prompt lengths and depths, on which needle tasks are judged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace reprise::eval {

/// Unless others are asked for.
inline constexpr uint32_t kGridLengths[] = {1024,  2048,  4096,  6144,  8192,
                                            16384, 32768, 65536, 131072};

struct GridCell {
  uint32_t length = 0;
  size_t step = 0, trial = 0;

  double depth() const;    // 0, 0.1, ..., 1
  std::string id() const;  // names the cell and the trial
};

/// The first limit cells, or ten trials of each where limit is 0. Every beginning is spread over
/// lengths and depths.
std::vector<GridCell> grid_cells(std::span<const uint32_t> lengths, size_t limit);

}  // namespace reprise::eval
