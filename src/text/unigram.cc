// SentencePiece's unigram model: the segmentation with the highest sum of scores (Viterbi).
#include <algorithm>
#include <limits>

#include "text/byte_trie.h"
#include "text/subword_model.h"
#include "text/utf8.h"

namespace reprise {
namespace {

constexpr int32_t kUnknown = -1;
constexpr double kUnknownPenalty = 10.0;  // below the least likely piece, as in SentencePiece
constexpr double kUserBonus = 0.1;

class UnigramModel : public SubwordModel {
 public:
  explicit UnigramModel(const TokenizerData& data)
      : fallback_(data, true), scores_(data.tokens.size()) {
    double least = std::numeric_limits<double>::infinity(), most = -least;
    std::vector<ByteTrie::Entry> pieces;
    for (size_t id = 0; id < data.tokens.size(); ++id) {
      if (!is_text_token(data.kinds[id])) continue;
      pieces.emplace_back(data.tokens[id], static_cast<int32_t>(id));
      least = std::min<double>(least, data.scores[id]);
      most = std::max<double>(most, data.scores[id]);
    }
    for (size_t id = 0; id < data.tokens.size(); ++id) {
      const bool user = data.kinds[id] == TokenKind::kUserDefined;
      const auto length = static_cast<double>(data.tokens[id].size());
      scores_[id] = user ? length * most - kUserBonus : data.scores[id];
    }
    unknown_score_ = pieces.empty() ? 0 : least - kUnknownPenalty;
    trie_ = ByteTrie(std::move(pieces));
  }

  void encode(std::string_view piece, SubwordScratch& scratch,
              std::vector<int32_t>& ids) const override {
    find_best(piece, scratch);
    append_best(piece, scratch, ids);
  }
  bool has_bytes(std::string_view bytes) const override { return fallback_.has(bytes); }

 private:
  // best[end]: the last token of the best segmentation of the first end bytes.
  void find_best(std::string_view piece, SubwordScratch& scratch) const {
    auto& best = scratch.best;
    best.assign(piece.size() + 1, {-std::numeric_limits<double>::infinity(), kUnknown, 0});
    best[0].score = 0;
    const auto offer = [&](size_t from, size_t bytes, double score, int32_t id) {
      ++scratch.steps;
      auto& end = best[from + bytes];
      if (best[from].score + score > end.score) {
        end = {best[from].score + score, id, static_cast<uint32_t>(bytes)};
      }
    };
    for (size_t from = 0; from < piece.size();) {
      const std::string_view rest = piece.substr(from);
      const size_t character = utf8_unit(rest).bytes;
      bool has_single = false;
      trie_.prefixes(rest, [&](size_t bytes, int32_t id) {
        offer(from, bytes, scores_[static_cast<size_t>(id)], id);
        has_single |= bytes == character;
      });
      if (!has_single) offer(from, character, unknown_score_, kUnknown);
      from += character;
    }
  }

  // A run of unknown characters becomes its bytes, or one unknown token.
  void append_best(std::string_view piece, SubwordScratch& scratch,
                   std::vector<int32_t>& ids) const {
    auto& reversed = scratch.symbols;  // id; begin and end of the bytes in prev and next
    reversed.clear();
    for (size_t end = piece.size(); end > 0; end -= scratch.best[end].bytes) {
      const auto& last = scratch.best[end];
      const auto begin = static_cast<uint32_t>(end - last.bytes);
      if (last.id == kUnknown && !reversed.empty() && reversed.back().id == kUnknown) {
        reversed.back().prev = begin;
      } else {
        reversed.push_back({last.id, begin, static_cast<uint32_t>(end)});
      }
    }
    for (auto token = reversed.rbegin(); token != reversed.rend(); ++token) {
      if (token->id != kUnknown) {
        ids.push_back(token->id);
      } else {
        fallback_.append(piece.substr(token->prev, token->next - token->prev), ids);
      }
    }
  }

  ByteTrie trie_;
  ByteFallback fallback_;
  std::vector<double> scores_;  // [vocab]
  double unknown_score_ = 0;
};

}  // namespace

std::unique_ptr<SubwordModel> make_unigram(const TokenizerData& data) {
  return std::make_unique<UnigramModel>(data);
}

}  // namespace reprise
