// The keys with the largest scores so far, of a list whose length is fixed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/float16.h"
#include "base/state_bytes.h"

namespace reprise {

/// Six bytes per key. Scores are rounded to half precision before they are compared; among equal
/// ones the lower key stays. What it holds depends on what it was offered, not on the order.
class ScoreList {
 public:
  /// Empties the list and fixes its length.
  void reset(size_t length);
  void offer(uint32_t key, float score);

  std::span<const uint32_t> keys() const { return keys_; }  // in no particular order
  float score(size_t i) const { return to_float(scores_[i]); }
  /// Of the finite scores that were offered and are not held; 0 where there is none.
  float mean_of_others() const {
    return others_ > 0 ? static_cast<float>(sum_of_others_ / static_cast<double>(others_)) : 0.0f;
  }
  uint64_t bytes() const;
  void save(StateWriter& out) const;
  /// Of keys below end; see KeyIndex::load.
  void load(StateReader& in, uint32_t end);

 private:
  bool worse(size_t a, size_t b) const;
  void swap(size_t a, size_t b);
  void count_other(float score);

  size_t length_ = 0;
  double sum_of_others_ = 0.0;
  uint64_t others_ = 0;
  std::vector<uint32_t> keys_;  // heap, the worst in front
  std::vector<F16> scores_;     // of keys_
};

}  // namespace reprise
