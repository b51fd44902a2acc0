#include "methods/baselines/evicting.h"

#include <algorithm>

namespace reprise {

void EvictingPolicy::after_step(SequenceKv& kv) {
  for (uint32_t layer = 0; layer < kept_.size(); ++layer) {
    if (kept_[layer].begin > 0) kv.evict(layer, 0, kept_[layer].begin);
  }
}

bool EvictingPolicy::can_resume(const SequenceKv& kv, int32_t length) const {
  for (uint32_t layer = 0; layer < kept_.size(); ++layer) {
    const int32_t begin = kept_[layer].until <= length ? kept_[layer].begin : 0;
    if (!keys_present(kv, layer, begin, length)) return false;
  }
  return true;
}

void EvictingPolicy::truncate(int32_t length) {
  for (uint32_t layer = 0; layer < kept_.size(); ++layer) {
    if (kept_[layer].until <= length) continue;
    if (device_state_ != nullptr && kept_[layer].until == length + 1) {
      kept_[layer].until = length;  // a row was computed ahead and given up
      continue;
    }
    kept_[layer] = {};
    side_.drop(layer);
  }
  if (length <= sparse_from_) sparse_from_ = kNever;
}

std::string EvictingPolicy::prefill_key() const {
  return sparse_from_ == kNever ? std::string(kDensePrefill) : std::string();
}

void EvictingPolicy::read_kept(const QueryRows& rows, Selection& selection) {
  const Kept& kept = kept_[rows.layer];
  selection.all = kept.begin == 0;
  if (selection.all) return;
  if (rows.phase == kernels::Phase::kPrefill) read_beside(rows.first());
  if (kept.side > 0) {
    SelectionPart& heavy = selection.parts.emplace_back();
    heavy.side = side_.pages();
    const KeyRange range = {0, kept.side};
    heavy.add_list({&range, 1});
  }
  SelectionPart& own = selection.parts.emplace_back();
  const KeyRange range = {kept.begin, rows.end()};
  own.add_list({&range, 1});
}

KeptScores EvictingPolicy::scores(const QueryRows& rows) const {
  return {shape_, *rows.kv, side_.pages(), keys(rows.layer, rows.end())};
}

}  // namespace reprise
