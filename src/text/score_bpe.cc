// SentencePiece's BPE: of all neighbours whose concatenation is a piece, the one with the best
// score merges first. Every way to make a piece from two symbols becomes one merge of the table.
#include <algorithm>
#include <numeric>

#include "text/bpe_model.h"
#include "text/utf8.h"

namespace reprise {
namespace {

// Pieces and the single characters inside them; only these can be neighbours in a merge.
class Symbols {
 public:
  explicit Symbols(const TokenizerData& data) : data_(data) {
    for (size_t id = 0; id < data.tokens.size(); ++id) {
      if (is_text_token(data.kinds[id])) ids_.emplace(data.tokens[id], static_cast<int32_t>(id));
    }
    for (size_t id = 0; id < data.tokens.size(); ++id) {
      if (is_text_token(data.kinds[id])) add_characters(data.tokens[id]);
    }
  }

  int32_t find(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? BpeAlphabet::kNone : found->second;
  }
  BpeAlphabet take_alphabet() { return std::move(alphabet_); }
  std::vector<std::string> take_virtual_texts() { return std::move(virtual_texts_); }

 private:
  void add_characters(std::string_view text) {
    while (!text.empty()) {
      const Utf8Unit unit = utf8_unit(text);
      const std::string_view character = text.substr(0, unit.bytes);
      const auto next = static_cast<int32_t>(data_.tokens.size() + virtual_texts_.size());
      const auto [place, added] = ids_.emplace(character, next);
      if (added) virtual_texts_.emplace_back(character);
      alphabet_.set_character(unit.code_point, place->second);
      text.remove_prefix(unit.bytes);
    }
  }

  const TokenizerData& data_;
  std::unordered_map<std::string_view, int32_t> ids_;
  BpeAlphabet alphabet_;
  std::vector<std::string> virtual_texts_;
};

// Ranks by falling score; equal scores share a rank, so that the leftmost pair goes first.
std::vector<uint32_t> ranks_by_score(const std::vector<float>& scores) {
  std::vector<uint32_t> order(scores.size()), ranks(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    ranks[order[i]] = ranks[order[i - 1]] + (scores[order[i]] < scores[order[i - 1]] ? 1 : 0);
  }
  return ranks;
}

// Calls visit(left, right, id) for every split of every piece into two symbols.
template <class Visit>
void for_each_split(const TokenizerData& data, const Symbols& symbols, Visit visit) {
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (!is_text_token(data.kinds[id])) continue;
    const std::string_view piece = data.tokens[id];
    for (size_t cut = utf8_unit(piece).bytes; cut < piece.size();
         cut += utf8_unit(piece.substr(cut)).bytes) {
      const int32_t left = symbols.find(piece.substr(0, cut));
      const int32_t right = symbols.find(piece.substr(cut));
      if (left != BpeAlphabet::kNone && right != BpeAlphabet::kNone) visit(left, right, id);
    }
  }
}

}  // namespace

std::unique_ptr<SubwordModel> make_score_bpe(const TokenizerData& data) {
  Symbols symbols(data);
  size_t splits = 0;
  for_each_split(data, symbols, [&](int32_t, int32_t, size_t) { ++splits; });
  MergeTable merges(splits);
  const auto ranks = ranks_by_score(data.scores);
  for_each_split(data, symbols, [&](int32_t left, int32_t right, size_t id) {
    merges.add(left, right, {ranks[id], static_cast<int32_t>(id)});
  });
  return std::make_unique<BpeModel>(
      BpeParts{.alphabet = symbols.take_alphabet(),
               .merges = std::move(merges),
               .fallback = ByteFallback(data, true),
               .byte_level = false,
               .fuse_unknown = true,
               .unknown = data.unknown.value_or(BpeAlphabet::kNone),
               .first_virtual = static_cast<int32_t>(data.tokens.size()),
               .virtual_texts = symbols.take_virtual_texts(),
               .whole_pieces = {}});
}

}  // namespace reprise
