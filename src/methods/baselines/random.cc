#include "methods/baselines/random.h"

#include "methods/page_list.h"
#include "methods/top_k.h"

namespace reprise {
namespace {

// SplitMix64 (Steele et al. 2014).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

void RandomPolicy::select(const QueryRows& rows, Selection& selection) {
  const size_t full_pages = static_cast<size_t>(rows.end() - 1) / kPageTokens;  // before the last
  if (rows.phase == kernels::Phase::kPrefill || full_pages < budget_pages_) return;
  selection.all = false;
  SelectionPart& part = selection.parts.emplace_back();
  part.split = HeadSplit::kPerKvHead;
  scores_.resize(full_pages);
  for (size_t head = 0; head < n_kv_head_; ++head) {
    const uint64_t place = mix(mix(mix(seed_) + rows.layer) + head);
    uint64_t state = mix(place + static_cast<uint64_t>(rows.end()));
    for (float& score : scores_) score = static_cast<float>((state = mix(state)) >> 40);
    top_k(scores_, budget_pages_ - 1, pages_);
    pages_.push_back(static_cast<int32_t>(full_pages));
    add_pages(part, pages_, rows.end());
  }
}

}  // namespace reprise
