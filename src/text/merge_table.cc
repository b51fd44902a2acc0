#include "text/merge_table.h"

#include <algorithm>
#include <bit>

namespace reprise {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Heap order: the top merges next.
bool merges_later(const SubwordScratch::Candidate& a, const SubwordScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

MergeTable::MergeTable(size_t capacity) {
  const size_t slots = std::bit_ceil(2 * capacity + 2);
  slots_.resize(slots);
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
}

void MergeTable::add(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t at = slot_of(key);
  while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask_;
  if (slots_[at].key == kEmpty) slots_[at] = {key, merge};
}

void MergeTable::push(SubwordScratch& scratch, uint32_t at) const {
  const auto& symbols = scratch.symbols;
  if (at == kNone || symbols[at].next == kNone) return;
  const int32_t left = symbols[at].id, right = symbols[symbols[at].next].id;
  const Merge* merge = find(left, right);
  if (merge == nullptr) return;
  scratch.candidates.push_back({merge->rank, at, left, right});
}

void MergeTable::apply(SubwordScratch& scratch) const {
  auto& ids = scratch.ids;
  auto& symbols = scratch.symbols;
  auto& candidates = scratch.candidates;
  const auto count = static_cast<uint32_t>(ids.size());
  symbols.clear();
  candidates.clear();
  for (uint32_t at = 0; at < count; ++at) {
    symbols.push_back({ids[at], at == 0 ? kNone : at - 1, at + 1 == count ? kNone : at + 1});
  }
  for (uint32_t at = 0; at < count; ++at) push(scratch, at);
  std::ranges::make_heap(candidates, merges_later);
  scratch.steps += count;
  const auto push_to_heap = [&](uint32_t at) {
    const size_t before = candidates.size();
    push(scratch, at);
    if (candidates.size() > before) std::ranges::push_heap(candidates, merges_later);
  };
  while (!candidates.empty()) {
    ++scratch.steps;
    const auto candidate = candidates.front();
    std::ranges::pop_heap(candidates, merges_later);
    candidates.pop_back();
    auto& left = symbols[candidate.at];
    // A symbol that was merged away keeps an id that no pair has.
    if (left.id != candidate.left || left.next == kNone) continue;
    auto& right = symbols[left.next];
    if (right.id != candidate.right) continue;
    left.id = find(candidate.left, candidate.right)->id;
    right.id = -1;
    left.next = right.next;
    if (right.next != kNone) symbols[right.next].prev = candidate.at;
    push_to_heap(left.prev);
    push_to_heap(candidate.at);
  }
  ids.clear();
  for (uint32_t at = 0; at != kNone && count > 0; at = symbols[at].next) {
    ids.push_back(symbols[at].id);
  }
}

}  // namespace reprise
