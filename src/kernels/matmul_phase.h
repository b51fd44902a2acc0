// The two ways to compute a group of products, and what they share.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/matmul.h"
#include "kernels/matmul_isa.h"

namespace reprise::kernels {

struct MatmulInput : MatmulRows {
  const MatmulKernels* kernels;
  ThreadPool* pool;
  MatmulScratch* scratch;
};

void decode(std::span<const Projection> projections, const MatmulInput& input);
/// Weights of types of the form.
void prefill(std::span<const Projection> projections, const PrefillForm& form,
             const MatmulInput& input);
/// Without biases of gate and up, with kernels that write_gated.
void prefill_mlp(const GatedMlp& mlp, const MatmulInput& input);

/// A projection and the place of its units of work (some panels each) in the group's numbering.
struct Part {
  Projection projection;
  PackedLayout layout;
  size_t panels = 0;
  size_t begin = 0, end = 0;  // units
};

inline std::vector<Part> split_in_units(std::span<const Projection> projections,
                                        size_t panels_per_unit) {
  std::vector<Part> parts;
  size_t begin = 0;
  for (const Projection& p : projections) {
    Part part{p, packed_layout(p.weight->type(), p.weight->cols())};
    part.panels = (p.weight->rows() + kPanelRows - 1) / kPanelRows;
    part.begin = begin;
    part.end = begin += (part.panels + panels_per_unit - 1) / panels_per_unit;
    parts.push_back(part);
  }
  return parts;
}

/// Calls f(part, first unit, last unit) for the units [begin, end) of the group; the units passed
/// count from the part's begin.
template <class F>
void for_units(std::span<const Part> parts, size_t begin, size_t end, F&& f) {
  for (const Part& part : parts) {
    const size_t first = std::max(begin, part.begin), last = std::min(end, part.end);
    if (first < last) f(part, first - part.begin, last - part.begin);
  }
}

/// Grows buffer and returns room for count elements, aligned to a cache line.
template <class T>
T* reserve(std::vector<std::byte>& buffer, size_t count) {
  const size_t bytes = count * sizeof(T) + 64;
  if (buffer.size() < bytes) buffer.resize(bytes);
  const auto address = (reinterpret_cast<uintptr_t>(buffer.data()) + 63) / 64 * 64;
  return reinterpret_cast<T*>(address);
}

}  // namespace reprise::kernels
