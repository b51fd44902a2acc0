#include "text/character_map.h"

#include <algorithm>
#include <cstring>

#include "text/utf8.h"

namespace reprise {
namespace {

// Fields of a unit of the Darts-clone double array.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FFu; }
constexpr size_t kMaxReplacement = 256;  // bytes; the longest in Unicode's forms has 33

uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200u) >> 6); }

}  // namespace

Result<CharacterMap> CharacterMap::parse(std::string_view bytes) {
  uint32_t trie_bytes = 0;
  if (bytes.size() >= sizeof trie_bytes) std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  const size_t left = bytes.size() - std::min(bytes.size(), sizeof trie_bytes);
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes > left) {
    return fail(ErrorCode::kBadValue, "the character map has {} bytes, its trie {}", bytes.size(),
                trie_bytes);
  }
  CharacterMap map;
  map.units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(map.units_.data(), bytes.data() + sizeof trie_bytes, trie_bytes);
  map.replacements_ = bytes.substr(sizeof trie_bytes + trie_bytes);
  return map;
}

CharacterMap::Match CharacterMap::longest(std::string_view text) const {
  Match best;
  uint32_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte == 0) break;  // NUL ends keys
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) break;
    const bool leaf = has_leaf(units_[node]);
    node ^= offset_of(units_[node]);
    if (leaf && node < units_.size()) best = {i + 1, value_of(units_[node])};
  }
  return best;
}

std::optional<std::string_view> CharacterMap::replacement(uint32_t begin) const {
  if (begin >= replacements_.size()) return {};
  const size_t end = replacements_.find('\0', begin);
  if (end == replacements_.npos || end - begin > kMaxReplacement) return {};
  return std::string_view(replacements_).substr(begin, end - begin);
}

std::string CharacterMap::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Match match = longest(text);
    const auto found = match.bytes > 0 ? replacement(match.value) : std::nullopt;
    if (found) {
      out += *found;
      text.remove_prefix(match.bytes);
    } else {
      const size_t bytes = utf8_unit(text).bytes;
      out += text.substr(0, bytes);
      text.remove_prefix(bytes);
    }
  }
  return out;
}

}  // namespace reprise
