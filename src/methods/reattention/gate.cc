#include "methods/reattention/gate.h"

#include <algorithm>
#include <array>

#include "base/state_bytes.h"

namespace reprise {
namespace {

/// By rows back.
constexpr std::array<double, Gate::kRows> kWeights = [] {
  std::array<double, Gate::kRows> weights{};
  double weight = 1.0;
  for (double& each : weights) {
    each = weight;
    weight *= Gate::kFade;
  }
  return weights;
}();

}  // namespace

void Gate::add(int32_t row, uint32_t heads) {
  if (heads == 0) return;
  if (rows_.empty() || rows_.back().position != row) rows_.push_back({row, 0});
  rows_.back().heads += heads;
}

double Gate::evidence(int32_t row) const {
  double sum = 0.0;
  for (auto at = rows_.rbegin(); at != rows_.rend() && row - at->position < kRows; ++at) {
    sum += kWeights[static_cast<size_t>(row - at->position)] * at->heads;
  }
  return sum / kPast;
}

void Gate::truncate(int32_t length) {
  std::erase_if(rows_, [&](const Row& row) { return row.position >= length; });
}

std::string Gate::save() const {
  StateWriter out;
  out.value(uint64_t{rows_.size()});
  out.array(rows_.data(), rows_.size());
  return out.take();
}

bool Gate::restore(std::string_view state, int32_t length, size_t heads) {
  StateReader in(state);
  in.array(rows_, in.value<uint64_t>());
  int32_t least = 0;
  for (const Row& row : rows_) {
    in.require(row.position >= least && row.position < length && row.heads <= heads);
    least = row.position + 1;
  }
  if (!in.ended()) rows_.clear();
  return in.ended();
}

}  // namespace reprise
