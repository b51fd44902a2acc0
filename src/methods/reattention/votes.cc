#include "methods/reattention/votes.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace reprise {

namespace {

/// Of picks as candidates of their own.
std::vector<Candidate> joined(std::vector<Candidate> picks) {
  std::sort(picks.begin(), picks.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  std::vector<Candidate> candidates;
  for (const Candidate& pick : picks) {
    if (candidates.empty() || candidates.back().key != pick.key) {
      candidates.push_back(pick);
      continue;
    }
    Candidate& candidate = candidates.back();
    candidate.votes += pick.votes;
    candidate.score = std::max(candidate.score, pick.score);
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.votes != b.votes) return a.votes > b.votes;
    if (a.score != b.score) return a.score > b.score;
    return a.key > b.key;
  });
  return candidates;
}

}  // namespace

std::vector<Candidate> count_votes(std::span<const kernels::RankedKey> picks) {
  std::vector<Candidate> votes;
  for (const kernels::RankedKey& pick : picks) {
    if (pick.key >= 0) votes.push_back({pick.key, 1, pick.score});
  }
  return joined(std::move(votes));
}

std::vector<Candidate> count_soft_votes(std::span<const kernels::RankedKey> picks, size_t each,
                                        float scale) {
  std::vector<Candidate> votes;
  for (; !picks.empty(); picks = picks.subspan(each)) {
    const auto weight = [&](const kernels::RankedKey& pick) {
      return pick.key < 0 ? 0.0f : std::exp((pick.score - picks[0].score) * scale);
    };
    float sum = 0.0f;
    for (const kernels::RankedKey& pick : picks.first(each)) sum += weight(pick);
    for (const kernels::RankedKey& pick : picks.first(each)) {
      if (pick.key < 0) continue;
      const float parts = std::round(kVoteParts * weight(pick) / sum);
      votes.push_back({pick.key, static_cast<uint32_t>(parts), pick.score});
    }
  }
  return joined(std::move(votes));
}

std::vector<KeyRange> cover(std::span<const Candidate> candidates, int32_t span, KeyRange within) {
  std::vector<int32_t> keys;
  keys.reserve(candidates.size());
  for (const Candidate& candidate : candidates) keys.push_back(candidate.key);
  std::sort(keys.begin(), keys.end());
  std::vector<KeyRange> ranges;
  for (const int32_t key : keys) {
    const int32_t begin = std::max(within.begin, key - span / 2);
    const int32_t end = std::min(within.end, key - span / 2 + span);
    if (!ranges.empty() && begin <= ranges.back().end) {
      ranges.back().end = std::max(ranges.back().end, end);
    } else {
      ranges.push_back({begin, end});
    }
  }
  return ranges;
}

int64_t keys_in(std::span<const KeyRange> ranges) {
  int64_t keys = 0;
  for (const KeyRange& range : ranges) keys += range.end - range.begin;
  return keys;
}

std::vector<KeyRange> fill(std::span<const Candidate> candidates, size_t least, int64_t budget,
                           int32_t span, KeyRange within) {
  size_t fits = std::min(least, candidates.size()), beyond = candidates.size() + 1;
  while (fits + 1 < beyond) {  // a cover grows with the number of its candidates
    const size_t count = fits + (beyond - fits) / 2;
    const bool small = keys_in(cover(candidates.first(count), span, within)) <= budget;
    (small ? fits : beyond) = count;
  }
  return cover(candidates.first(fits), span, within);
}

}  // namespace reprise
