#include "methods/baselines/quest.h"

#include <algorithm>
#include <limits>

#include "methods/page_list.h"
#include "methods/top_k.h"

namespace reprise {

QuestPolicy::QuestPolicy(const QuestOptions& options, const ModelConfig& config)
    : options_(options),
      budget_pages_(options.budget / kPageTokens),
      sink_pages_((options.sink + kPageTokens - 1) / kPageTokens),
      bounds_(config),
      pages_(config.n_kv_head) {}

void QuestPolicy::select(const QueryRows& rows, Selection& selection) {
  bounds_.update(rows);
  if (rows.phase == kernels::Phase::kDecode) choose(rows, selection);
}

bool QuestPolicy::predict(const QueryRows& rows, Selection& selection) {
  // Bounds of KV that was loaded with the layer's pages are made when it is first computed.
  const size_t full_pages = static_cast<size_t>(rows.end() - 1) / kPageTokens;
  const auto taken_in = static_cast<size_t>(bounds_.end(rows.layer));
  if (rows.q == nullptr || taken_in < full_pages * kPageTokens) return false;
  choose(rows, selection);
  return true;
}

void QuestPolicy::choose(const QueryRows& rows, Selection& selection) {
  const size_t full_pages = static_cast<size_t>(rows.end() - 1) / kPageTokens;  // before the last
  if (full_pages < budget_pages_) return;
  selection.index_bytes_read = bounds_.score(rows, full_pages, scores_);
  rows.pool->run(pages_.size(), [&](size_t head, int) {
    const auto scores = std::span(scores_).subspan(head * full_pages, full_pages);
    std::fill_n(scores.begin(), std::min(sink_pages_, full_pages),
                std::numeric_limits<float>::infinity());
    top_k(scores, budget_pages_ - 1, pages_[head]);
    pages_[head].push_back(static_cast<int32_t>(full_pages));
  });
  selection.all = false;
  SelectionPart& part = selection.parts.emplace_back();
  part.split = HeadSplit::kPerKvHead;
  for (const auto& pages : pages_) add_pages(part, pages, rows.end());
}

}  // namespace reprise
