#include "text/encoder.h"

#include <algorithm>

#include "formats/printable.h"
#include "text/utf8.h"

namespace reprise {
namespace {

// Longer words are cut, which bounds the memory that merging one of them takes.
constexpr size_t kMaxWord = size_t{16} << 20;

// Bytes up to the next U+2581 that follows something else.
size_t metaspace_cut(std::string_view piece) {
  size_t at = 0;
  while (piece.substr(at).starts_with(kMetaspace)) at += kMetaspace.size();
  return std::min(piece.find(kMetaspace, at), piece.size());
}

// Bytes of the part that is encoded at once; never splits a character.
size_t word_end(std::string_view word) {
  if (word.size() <= kMaxWord) return word.size();
  const size_t valid = kMaxWord - last_character_bytes(word.substr(0, kMaxWord));
  return std::max(valid, kMaxWord - 4);
}

}  // namespace

Encoder::Encoder(const TokenizerParts& parts, std::string_view text, const EncodeOptions& options,
                 std::vector<int32_t>& ids)
    : parts_(parts), text_(text), options_(options), ids_(ids), cache_(text.size()) {}

void Encoder::run() {
  if (is_utf8(text_)) {
    if (!text_.empty()) encode_valid(text_);
    return;
  }
  std::string_view rest = text_;
  while (!rest.empty()) {
    const size_t valid = valid_utf8_prefix(rest);
    if (valid > 0) encode_valid(rest.substr(0, valid));
    rest.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < rest.size() && !utf8_unit(rest.substr(invalid)).valid) {
      invalid += utf8_unit(rest.substr(invalid)).bytes;
    }
    if (invalid > 0) encode_invalid(rest.substr(0, invalid));
    rest.remove_prefix(invalid);
  }
}

void Encoder::encode_invalid(std::string_view bytes) {
  if (parts_.model->has_bytes(bytes)) {
    encode_word(bytes);
  } else {
    const std::string& repaired = context_.texts.emplace_back(replace_invalid_utf8(bytes));
    const bool at_start = bytes.data() == text_.data();
    encode_between(repaired, {at_start, false, after_special_, !at_start}, {});
  }
  after_special_ = false;
}

void Encoder::encode_valid(std::string_view run) {
  const size_t offset = offset_of(run);
  const AddedTokens::Filter filter{options_.parse_special, options_.literal, offset};
  parts_.added.split(run, filter, [&](std::string_view part, const AddedToken* token) {
    if (token != nullptr) {
      ids_.push_back(token->id);
      after_special_ = token->special;
      return;
    }
    const size_t begin = offset_of(part);
    encode_between(part,
                   {begin == 0, begin + part.size() == text_.size(), after_special_,
                    begin == offset && offset > 0},
                   literal_in(part));
    after_special_ = false;
  });
}

std::vector<TextRange> Encoder::literal_in(std::string_view part) const {
  std::vector<TextRange> ranges;
  if (parts_.added_normalized.empty()) return ranges;
  const auto inside_character = [&](size_t at) {
    return at < part.size() && (static_cast<uint8_t>(part[at]) & 0xc0) == 0x80;
  };
  const size_t offset = offset_of(part);
  auto range = std::ranges::upper_bound(options_.literal, offset, {}, &TextRange::end);
  for (; range != options_.literal.end() && range->begin < offset + part.size(); ++range) {
    size_t begin = std::max(range->begin, offset) - offset;
    size_t end = std::min(range->end - offset, part.size());
    while (inside_character(begin)) --begin;
    while (inside_character(end)) ++end;
    if (!ranges.empty()) begin = std::max(begin, ranges.back().end);
    if (begin < end) ranges.push_back({begin, end});
  }
  return ranges;
}

std::string_view Encoder::normalize(std::string_view part, const TextPosition& position,
                                    std::vector<TextRange>& literal) {
  std::string& out = context_.texts.emplace_back();
  size_t done = 0;
  const auto append_up_to = [&](size_t end) {
    const bool first = done == 0, last = end == part.size();
    const TextPosition place{position.at_start && first, position.at_end && last,
                             position.after_special && first, position.continues || !first, !last};
    out += parts_.normalizer.apply(part.substr(done, end - done), place, context_.regex);
    done = end;
  };
  for (TextRange& range : literal) {
    if (done < range.begin) append_up_to(range.begin);
    const size_t begin = out.size();
    append_up_to(range.end);
    range = {begin, out.size()};
  }
  if (done < part.size()) append_up_to(part.size());
  return out;
}

void Encoder::encode_between(std::string_view part, const TextPosition& position,
                             std::vector<TextRange> literal) {
  context_.at_start = position.at_start;
  context_.continues = position.continues;
  const auto split = [&](std::string_view text) {
    parts_.pre_tokenizer.split(text, context_,
                               [&](std::string_view piece) { encode_piece(piece); });
  };
  if (parts_.normalizer.empty()) {
    split(part);
    return;
  }
  const std::string_view text = normalize(part, position, literal);
  const AddedTokens::Filter filter{options_.parse_special, literal, 0};
  parts_.added_normalized.split(text, filter, [&](std::string_view rest, const AddedToken* token) {
    if (token == nullptr) {
      split(rest);
    } else {
      ids_.push_back(token->id);
    }
    context_.at_start = false;
  });
}

void Encoder::encode_piece(std::string_view piece) {
  while (parts_.cut_before_metaspace && !piece.empty()) {
    const size_t cut = metaspace_cut(piece);
    if (cut == piece.size()) break;
    encode_word(piece.substr(0, cut));
    piece.remove_prefix(cut);
  }
  encode_word(piece);
}

void Encoder::encode_word(std::string_view word) {
  while (word.size() > kMaxWord) {
    const size_t end = word_end(word);
    parts_.model->encode(word.substr(0, end), scratch_, ids_);
    word.remove_prefix(end);
  }
  WordCache::Entry* entry = cache_.place(word);
  const size_t first = ids_.size();
  if (entry != nullptr && entry->count > 0 && entry->word == word) {
    ids_.resize(first + entry->count);
    std::copy_n(ids_.begin() + static_cast<ptrdiff_t>(entry->first), entry->count,
                ids_.begin() + static_cast<ptrdiff_t>(first));
    return;
  }
  parts_.model->encode(word, scratch_, ids_);
  if (entry != nullptr) *entry = {word, first, static_cast<uint32_t>(ids_.size() - first)};
}

}  // namespace reprise
