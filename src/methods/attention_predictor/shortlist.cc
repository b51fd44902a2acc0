#include "methods/attention_predictor/shortlist.h"

#include <algorithm>
#include <limits>

#include "methods/top_k.h"

namespace reprise {
namespace {

constexpr size_t kListed = 2, kMostListed = 4;  // times as many as are chosen

template <class T>
void fetch_lines(const std::vector<T>& values) {
  constexpr size_t kLine = 64 / sizeof(T);
  for (size_t i = 0; i < values.size(); i += kLine) __builtin_prefetch(&values[i]);
}

}  // namespace

void Shortlist::best(std::span<float> averages, size_t first, size_t last, size_t count,
                     std::vector<int32_t>& blocks) {
  count = std::min(count, last - first);
  const bool known = first == first_ && last >= last_ && last_ > first_ && last <= averages.size();
  if (known) extend(averages, last);
  if (!known || blocks_.size() > kMostListed * count || !pick(count)) {
    store(averages);
    renew(averages, first, last, count);
    pick(count);  // these rank first, whatever the cut
  }
  blocks.resize(count);
  const auto from = static_cast<int32_t>(first);
  for (size_t i = 0; i < count; ++i) blocks[i] = chosen_[i] - from;
}

void Shortlist::renew(std::span<const float> averages, size_t first, size_t last, size_t count) {
  const size_t known = std::clamp(averages.size(), first, last);
  scores_.assign(averages.begin() + static_cast<std::ptrdiff_t>(first),
                 averages.begin() + static_cast<std::ptrdiff_t>(known));
  scores_.resize(last - first, 0.0f);  // blocks that no row has seen
  top_k(scores_, kListed * count, blocks_);
  cut_ = blocks_.size() < scores_.size() ? std::numeric_limits<float>::infinity() : -1.0f;
  for (size_t i = 0; i < blocks_.size(); ++i) {  // they ascend: none is overwritten unread
    scores_[i] = scores_[static_cast<size_t>(blocks_[i])];
    cut_ = std::min(cut_, scores_[i]);
    blocks_[i] += static_cast<int32_t>(first);
  }
  scores_.resize(blocks_.size());
  first_ = first;
  last_ = last;
}

void Shortlist::extend(std::span<const float> averages, size_t last) {
  for (; last_ < last; ++last_) {
    if (!(averages[last_] > cut_)) continue;
    blocks_.push_back(static_cast<int32_t>(last_));
    scores_.push_back(averages[last_]);
  }
}

/// False: blocks that are not listed may be among the best.
bool Shortlist::pick(size_t count) {
  const size_t listed = scores_.size(), some = std::min(count, listed);
  marks_.resize((listed + kernels::kMarks - 1) / kernels::kMarks);
  kernels::mark_largest(scores_.data(), listed, some, near_, marks_.data());
  chosen_.resize(some);
  picked_.resize(some);
  kernels::take_marked(marks_.data(), listed, blocks_.data(), scores_.data(), chosen_.data(),
                       picked_.data());
  size_t above = 0;
  for (const float average : picked_) above += average > cut_;
  return above == count;
}

void Shortlist::set_picked(std::span<const float> averages) {
  std::ranges::copy(averages, picked_.begin());
  kernels::put_marked(marks_.data(), scores_.size(), averages.data(), scores_.data());
}

void Shortlist::fade(float factor) {
  if (cut_ > 0.0f) cut_ *= factor;
  for (float& score : scores_) score *= factor;
}

void Shortlist::store(std::span<float> averages) const {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const auto block = static_cast<size_t>(blocks_[i]);
    if (block < averages.size()) averages[block] = scores_[i];
  }
}

void Shortlist::fetch() const {
  fetch_lines(scores_);
  fetch_lines(blocks_);
  fetch_lines(marks_);
  fetch_lines(chosen_);
  fetch_lines(picked_);
}

void Shortlist::clear() {
  first_ = last_ = 0;
  blocks_.clear();
  scores_.clear();
}

size_t Shortlist::find_picks(std::span<const int32_t> read) const {
  if (last_ == first_ || chosen_.empty() || read.size() < chosen_.size()) return kNoPicks;
  const auto from = static_cast<size_t>(
      std::lower_bound(read.begin(), read.end(), chosen_.front()) - read.begin());
  const size_t end = from + chosen_.size();
  if (end > read.size()) return kNoPicks;
  const bool others = (from > 0 && static_cast<size_t>(read[from - 1]) >= first_) ||
                      (end < read.size() && static_cast<size_t>(read[end]) < last_);
  const bool same = std::ranges::equal(read.subspan(from, chosen_.size()), chosen_);
  return same && !others ? from : kNoPicks;
}

}  // namespace reprise
