// From the keys that query rows picked to the spans of keys that are read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/selection.h"
#include "kernels/key_top_k.h"

namespace reprise {

/// A key that was picked.
struct Candidate {
  int32_t key = 0;
  uint32_t votes = 0;  // query rows and heads that picked it, or parts of their votes
  float score = 0;     // the best of them
};

/// Every key among the picks once, most votes first, then best score, then the later key. Empty
/// places of picks are no votes.
std::vector<Candidate> count_votes(std::span<const kernels::RankedKey> picks);

/// Parts into which a vote is divided.
inline constexpr float kVoteParts = 1024.0f;

/// The same where a row and head has one vote of kVoteParts for its picks, `each` in order, which
/// it divides as softmax does. scale: of scores.
std::vector<Candidate> count_soft_votes(std::span<const kernels::RankedKey> picks, size_t each,
                                        float scale);

/// The union of spans of `span` keys around the candidates, inside `within`: ascending, disjoint,
/// merged where they touch.
std::vector<KeyRange> cover(std::span<const Candidate> candidates, int32_t span, KeyRange within);

int64_t keys_in(std::span<const KeyRange> ranges);

/// cover() of the most candidates, from the first on, of which there are at least `least`, that
/// does not hold more than `budget` keys.
std::vector<KeyRange> fill(std::span<const Candidate> candidates, size_t least, int64_t budget,
                           int32_t span, KeyRange within);

}  // namespace reprise
