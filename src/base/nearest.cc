#include "base/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace reprise {
namespace {

constexpr size_t kLongestWord = 64;  // longer words are not names; keeps the distance cheap

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

constexpr size_t kLeastBeginning = 3;

bool begins(std::string_view word, std::string_view longer) {
  return word.size() >= kLeastBeginning && longer.size() > word.size() &&
         std::equal(word.begin(), word.end(), longer.begin(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

// As --temp is of --temperature; of several the longest, which says most.
std::string_view beginning_of(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  for (const std::string_view candidate : candidates) {
    if (candidate.size() > best.size() && begins(candidate, word)) best = candidate;
  }
  return best;
}

}  // namespace

// Optimal string alignment distance, three rows at a time.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = previous[j - 1] + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
          lower(a[i - 2]) == lower(b[j - 1]))
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

std::string nearest(std::string_view word, std::span<const std::string_view> candidates) {
  if (word.empty() || word.size() > kLongestWord) return {};
  std::string_view best;
  size_t best_distance = (word.size() + 2) / 3 + 1;  // one edit in three characters is the limit
  for (const std::string_view candidate : candidates) {
    if (candidate.size() > kLongestWord) continue;
    const size_t d = begins(word, candidate) ? 1 : edits(word, candidate);
    if (d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  }
  return std::string(best.empty() ? beginning_of(word, candidates) : best);
}

std::string suggestion(std::string_view word, std::span<const std::string_view> candidates) {
  const std::string name = nearest(word, candidates);
  return name.empty() ? std::string() : fmt::format(" (did you mean {}?)", name);
}

}  // namespace reprise
