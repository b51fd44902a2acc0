#include "eval/metrics/edit_similarity.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "eval/metrics/lcs.h"
#include "eval/metrics/words.h"
#include "text/jinja/unicode.h"

namespace reprise::eval {
namespace {

std::u32string code_points(std::string_view text) {
  std::u32string points;
  for (size_t at = 0; at < text.size();) points += jinja::next_character(text, at);
  return points;
}

// Ratcliff and Obershelp's matching blocks as Python's difflib.SequenceMatcher finds them.
class BlockMatcher {
 public:
  BlockMatcher(const std::u32string& a, const std::u32string& b) : a_(a), b_(b) {
    for (size_t j = 0; j < b.size(); ++j) places_[b[j]].push_back(j);
    if (b.size() >= kLong) {
      const size_t most = b.size() / 100 + 1;
      std::erase_if(places_, [&](const auto& entry) { return entry.second.size() > most; });
    }
    for (auto* lengths : {&lengths_, &next_lengths_}) lengths->assign(b.size() + 1, 0);
  }

  // Characters in matching blocks.
  size_t matches() {
    size_t total = 0;
    std::vector<Window> open{{0, a_.size(), 0, b_.size()}};
    while (!open.empty()) {
      const Window window = open.back();
      open.pop_back();
      const Block block = longest(window);
      if (block.size == 0) continue;
      total += block.size;
      open.push_back({window.a_low, block.a, window.b_low, block.b});
      open.push_back({block.a + block.size, window.a_high, block.b + block.size, window.b_high});
    }
    return total;
  }

 private:
  // difflib's "autojunk": in texts of this many characters or more, a character that makes up more
  // than 1 % (and one) of them starts no match.
  static constexpr size_t kLong = 200;

  struct Window {
    size_t a_low, a_high, b_low, b_high;
  };
  struct Block {
    size_t a, b, size;
  };

  // The longest match that starts earliest in a, then in b, grown over popular characters. Without
  // any match it still grows from the window's corner, as difflib's does.
  Block longest(const Window& window) {
    Block best{window.a_low, window.b_low, 0};
    for (size_t i = window.a_low; i < window.a_high; ++i) {
      for (const size_t j : places(i)) {
        if (j < window.b_low) continue;
        if (j >= window.b_high) break;
        const size_t size = next_lengths_[j + 1] = lengths_[j] + 1;
        if (size > best.size) best = {i + 1 - size, j + 1 - size, size};
      }
      if (i > window.a_low) clear(lengths_, i - 1);
      std::swap(lengths_, next_lengths_);
    }
    if (window.a_high > window.a_low) clear(lengths_, window.a_high - 1);
    while (best.a > window.a_low && best.b > window.b_low && a_[best.a - 1] == b_[best.b - 1]) {
      best = {best.a - 1, best.b - 1, best.size + 1};
    }
    while (best.a + best.size < window.a_high && best.b + best.size < window.b_high &&
           a_[best.a + best.size] == b_[best.b + best.size]) {
      ++best.size;
    }
    return best;
  }

  const std::vector<size_t>& places(size_t i) const {
    static const std::vector<size_t> kNone;
    const auto found = places_.find(a_[i]);
    return found == places_.end() ? kNone : found->second;
  }

  void clear(std::vector<size_t>& lengths, size_t i) {
    for (const size_t j : places(i)) lengths[j + 1] = 0;
  }

  const std::u32string& a_;
  const std::u32string& b_;
  std::unordered_map<char32_t, std::vector<size_t>> places_;  // of b's characters, ascending
  // [j + 1]: length of the match that ends at b's character j and a's character of this, next row
  std::vector<size_t> lengths_, next_lengths_;
};

}  // namespace

double edit_similarity(std::string_view prediction, std::string_view reference, EditRatio ratio) {
  if (prediction == reference) return 1.0;
  if (prediction.empty() || reference.empty()) return 0.0;
  const std::u32string a = code_points(prediction), b = code_points(reference);
  const auto total = static_cast<double>(a.size() + b.size());
  double similarity = 0;
  if (ratio == EditRatio::kRatcliffObershelp) {
    similarity = 2.0 * static_cast<double>(BlockMatcher(a, b).matches()) / total;
  } else {
    similarity = 1.0 - (total - 2.0 * static_cast<double>(lcs_length(a, b))) / total;
  }
  return std::nearbyint(100 * similarity) / 100;
}

std::string_view code_line(std::string_view prediction) {
  for (const std::string_view line : lines_after_newlines(prediction)) {
    if (line.find_first_of("`#") == line.npos && line.find("//") == line.npos) return line;
  }
  return {};
}

}  // namespace reprise::eval
