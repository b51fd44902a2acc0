#include "methods/csattention/score_list.h"

#include <cmath>
#include <utility>

namespace reprise {

void ScoreList::reset(size_t length) {
  length_ = length;
  sum_of_others_ = 0.0;
  others_ = 0;
  keys_.clear();
  scores_.clear();
  keys_.reserve(length);
  scores_.reserve(length);
}

bool ScoreList::worse(size_t a, size_t b) const {
  const float x = to_float(scores_[a]), y = to_float(scores_[b]);
  return x != y ? x < y : keys_[a] > keys_[b];
}

void ScoreList::swap(size_t a, size_t b) {
  std::swap(keys_[a], keys_[b]);
  std::swap(scores_[a], scores_[b]);
}

void ScoreList::count_other(float score) {
  if (!std::isfinite(score)) return;
  sum_of_others_ += score;
  ++others_;
}

void ScoreList::offer(uint32_t key, float score) {
  const F16 rounded = to_f16(score);
  const float value = to_float(rounded);
  if (value != value) return;
  if (keys_.size() < length_) {
    keys_.push_back(key);
    scores_.push_back(rounded);
    for (size_t i = keys_.size() - 1; i > 0 && worse(i, (i - 1) / 2); i = (i - 1) / 2) {
      swap(i, (i - 1) / 2);
    }
    return;
  }
  const float least = length_ > 0 ? to_float(scores_[0]) : value;
  if (length_ == 0 || value < least || (value == least && key > keys_[0])) {
    return count_other(value);
  }
  count_other(least);
  keys_[0] = key;
  scores_[0] = rounded;
  for (size_t i = 0, child = 1; child < length_; i = child, child = 2 * i + 1) {
    if (child + 1 < length_ && worse(child + 1, child)) ++child;
    if (!worse(child, i)) return;
    swap(child, i);
  }
}

void ScoreList::save(StateWriter& out) const {
  out.value(uint64_t{length_});
  out.value(sum_of_others_);
  out.value(others_);
  out.value(uint64_t{keys_.size()});
  out.array(keys_.data(), keys_.size());
  out.array(scores_.data(), scores_.size());
}

void ScoreList::load(StateReader& in, uint32_t end) {
  length_ = in.value<uint64_t>();
  sum_of_others_ = in.value<double>();
  others_ = in.value<uint64_t>();
  in.require(std::isfinite(sum_of_others_));
  const uint64_t count = in.value<uint64_t>();
  in.require(count <= length_ && count <= end);
  in.array(keys_, count);
  in.array(scores_, count);
  for (const uint32_t key : keys_) in.require(key < end);
}

uint64_t ScoreList::bytes() const {
  return keys_.capacity() * sizeof(uint32_t) + scores_.capacity() * sizeof(F16);
}

}  // namespace reprise
