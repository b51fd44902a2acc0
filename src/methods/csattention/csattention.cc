#include "methods/csattention/csattention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "methods/csattention/centroid_lists.h"
#include "methods/csattention/code_index.h"
#include "methods/csattention/score_table.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
constexpr int32_t kDefaultWindow = 128, kPaperWindow = 32;
constexpr uint32_t kCodeIterations = 4, kCentroidIterations = 10, kPaperCentroids = 128,
                   kCentroidParts = 8;
constexpr int32_t kFewNewKeys = 4096;   // for which no prompt makes a new index
constexpr float kSameDirection = 0.8f;  // cosine below which a query is searched for anew

std::unique_ptr<KeyIndex> make_index(const CsAttentionOptions& options, const ModelConfig& config) {
  const int32_t unit = options.unit == "page" ? kTokens : 1;
  const auto either = [](uint32_t given, uint32_t own) { return given > 0 ? given : own; };
  if (options.mode == "codes") {
    const uint32_t iterations = either(options.iterations, kCodeIterations);
    const uint32_t parts = either(options.parts, std::max(1u, config.head_dim / 4));
    return std::make_unique<CodeIndex>(
        KeyCodesOptions{parts, options.bits, iterations, options.seed}, config, unit);
  }
  const uint32_t parts = either(options.parts, kCentroidParts);
  const uint32_t iterations = either(options.iterations, kCentroidIterations);
  if (options.mode == "table") {
    const uint32_t centroids = either(options.centroids, std::max(2u, config.head_dim / 4));
    return std::make_unique<ScoreTable>(
        ScoreTableOptions{parts, centroids, iterations, options.seed}, config, unit);
  }
  const uint32_t centroids = either(options.centroids, kPaperCentroids);
  return std::make_unique<CentroidLists>(
      CentroidListsOptions{parts, centroids, options.list, options.backoff, iterations,
                           options.seed},
      config);
}

}  // namespace

CsAttentionPolicy::CsAttentionPolicy(const CsAttentionOptions& options, const ModelConfig& config)
    : config_(&config),
      budget_(static_cast<int32_t>(options.budget)),
      period_(static_cast<int32_t>(options.period)),
      observe_(options.observe == 0 ? std::numeric_limits<int32_t>::max()
                                    : static_cast<int32_t>(options.observe)),
      keep_(options.keep),
      index_(make_index(options, config)),
      searches_(config.n_layer) {
  const bool paper = options.mode == "paper";
  const int32_t own = paper ? kPaperWindow : kDefaultWindow;
  const int32_t window = options.window > 0 ? static_cast<int32_t>(options.window) : own;
  // What is left of the smallest budget is a page to choose, even if one is not yet in the index.
  const int32_t unit = index_->unit();
  const int32_t sink = std::min(static_cast<int32_t>(options.sink), budget_ / 8);
  sink_ = paper ? 0 : (sink + unit - 1) / unit * unit;
  window_ = std::min(window, budget_ / 4);
  period_ = std::min(period_, budget_ / 32);
}

CsAttentionPolicy::CsAttentionPolicy(const CsAttentionPolicy& other)
    : Policy(other),
      config_(other.config_),
      budget_(other.budget_),
      sink_(other.sink_),
      window_(other.window_),
      period_(other.period_),
      observe_(other.observe_),
      keep_(other.keep_),
      index_(other.index_->clone()),
      searches_(other.searches_) {}

int32_t CsAttentionPolicy::budget_at(int32_t end) const {
  return std::max(budget_, static_cast<int32_t>(std::ceil(keep_ * static_cast<float>(end))));
}

// Whether the rows after a prompt deserve an index of their own.
bool CsAttentionPolicy::stale(uint32_t layer, int32_t end) const {
  const int32_t built = index_->built_end(layer);
  return end - built > std::max(kFewNewKeys, built / 4);
}

void CsAttentionPolicy::select(const QueryRows& rows, Selection& selection) {
  const int32_t end = rows.end();
  const bool prefill = rows.phase == kernels::Phase::kPrefill;
  const int32_t observed = std::min(observe_, rows.prompt_end);
  index_->take_queries(rows, {prefill ? rows.prompt_end - observed : rows.first(), observed});
  const int32_t budget = budget_at(end);
  if (end <= budget || (prefill && end != rows.prompt_end)) return;
  // Whole pages enter the index, so that decode steps seldom have to.
  const int32_t recent = (end - window_) / kTokens * kTokens;
  if (index_->built_end(rows.layer) == 0 || (prefill && stale(rows.layer, end))) {
    index_->build(rows, {sink_, end});
  }
  index_->extend(rows, recent);
  if (prefill) return;
  Search& search = searches_[rows.layer];
  if (!still_holds(search, rows)) {
    const int32_t wanted = budget - sink_ - (end - recent) - (period_ - 1);
    selection.index_bytes_read = index_->find(
        rows, {sink_, recent}, static_cast<size_t>(wanted / index_->unit()), search.picks);
    remember(rows, recent, search);
  }
  selection.all = false;
  SelectionPart& part = selection.parts.emplace_back();
  part.split = index_->split();
  for (const auto& picks : search.picks) {
    add_keys(part, sink_, picks, sink_, {search.recent, end}, index_->unit());
  }
}

bool CsAttentionPolicy::still_holds(const Search& search, const QueryRows& rows) const {
  if (search.end == 0 || rows.end() - search.end >= period_ || rows.end() < search.end)
    return false;
  const size_t dim = config_->head_dim;
  for (size_t head = 0; head < config_->n_head; ++head) {
    const float *now = rows.q_rotated + head * dim, *then = &search.q[head * dim];
    float product = 0.0f, now_norm = 0.0f, then_norm = 0.0f;
    for (size_t d = 0; d < dim; ++d) {
      product += now[d] * then[d];
      now_norm += now[d] * now[d];
      then_norm += then[d] * then[d];
    }
    if (!(product >= kSameDirection * std::sqrt(now_norm * then_norm))) return false;
  }
  return true;
}

void CsAttentionPolicy::remember(const QueryRows& rows, int32_t recent, Search& search) const {
  search.recent = recent;
  search.end = period_ > 1 ? rows.end() : 0;
  if (period_ == 1) return;
  search.q.assign(rows.q_rotated, rows.q_rotated + size_t{config_->n_head} * config_->head_dim);
}

void CsAttentionPolicy::truncate(int32_t length) {
  index_->truncate(length);
  for (Search& search : searches_) {
    if (search.end > length) search.end = 0;
  }
}

uint64_t CsAttentionPolicy::state_bytes() const {
  uint64_t bytes = index_->bytes();
  for (const Search& search : searches_) {
    bytes += search.q.capacity() * sizeof(float);
    for (const auto& picks : search.picks) bytes += picks.capacity() * sizeof(int32_t);
  }
  return bytes;
}

}  // namespace reprise
