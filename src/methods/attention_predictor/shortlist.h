// The blocks that may rank highest, so that a choice need not look at all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace reprise {

/// Of one head's averages. Blocks that a row does not read never gain, so that those above a cut
/// are known until another one passes it: a few times as many as are chosen. Their averages lie
/// together here, and elsewhere only after store(): a step finds nothing of a history in the
/// caches.
class Shortlist {
 public:
  /// As Predictor::best(). Averages may be stored.
  void best(std::span<float> averages, size_t first, size_t last, size_t count,
            std::vector<int32_t>& blocks);
  /// Averages become this many times as large, at most one; those of what was chosen are to be set.
  void fade(float factor);
  /// Where in a row's blocks those stand that were chosen last; kNoPicks if they do not, or if
  /// others do that may be listed.
  size_t find_picks(std::span<const int32_t> read) const;
  /// Averages of what was chosen.
  std::span<const float> picked() const { return picked_; }
  void set_picked(std::span<const float> averages);
  /// Puts the averages that lie here where the others are.
  void store(std::span<float> averages) const;
  /// Fetches all towards the caches.
  void fetch() const;
  /// Forgets all.
  void clear();
  uint64_t bytes() const {
    return blocks_.capacity() * sizeof(int32_t) + scores_.capacity() * sizeof(float) +
           marks_.capacity() * sizeof(uint16_t) + chosen_.capacity() * sizeof(int32_t) +
           picked_.capacity() * sizeof(float);
  }

  static constexpr size_t kNoPicks = ~size_t{0};

 private:
  void renew(std::span<const float> averages, size_t first, size_t last, size_t count);
  void extend(std::span<const float> averages, size_t last);
  bool pick(size_t count);

  size_t first_ = 0, last_ = 0;  // of these, every block above the cut is listed
  float cut_ = 0.0f;
  std::vector<int32_t> blocks_;  // ascending
  std::vector<float> scores_;    // their averages
  std::vector<uint16_t> marks_;  // which of them were chosen
  int32_t near_ = 0;             // where the search for these begins
  std::vector<int32_t> chosen_;  // those blocks
  std::vector<float> picked_;    // their averages, side by side
};

}  // namespace reprise
