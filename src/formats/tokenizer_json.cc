#include "formats/tokenizer_json.h"

#include <algorithm>
#include <limits>

#include "base/try.h"
#include "formats/printable.h"
#include "formats/tokenizer_check.h"

namespace reprise {
namespace tokenizer_json {
namespace {

using Array = simdjson::dom::array;

constexpr int64_t kMaxHoles = 65536;  // ids that no token has, which real vocabularies do have

// Puts a token at its id; the vocabulary may list ids in any order.
class VocabBuilder {
 public:
  VocabBuilder(const Context& context, TokenizerData& data, size_t listed)
      : context_(context), data_(data), limit_(static_cast<int64_t>(listed) + kMaxHoles) {}

  Status put(std::string_view text, int64_t id, TokenKind kind) {
    if (id < 0 || id >= limit_) {
      return fail(ErrorCode::kBadValue, "{}: token {} has id {}, outside 0 to {}", context_.file,
                  printable(text), id, limit_ - 1);
    }
    const auto index = static_cast<size_t>(id);
    if (index >= data_.tokens.size()) {
      data_.tokens.resize(index + 1);
      data_.kinds.resize(index + 1, TokenKind::kUnused);
    }
    if (data_.kinds[index] != TokenKind::kUnused && data_.tokens[index] != text) {
      return fail(ErrorCode::kBadValue, "{}: tokens {} and {} have the same id {}", context_.file,
                  printable(data_.tokens[index]), printable(text), id);
    }
    data_.tokens[index] = text;
    data_.kinds[index] = kind;
    return {};
  }

 private:
  const Context& context_;
  TokenizerData& data_;
  int64_t limit_;
};

Status read_bpe_vocab(const Context& context, Object model, VocabBuilder& vocab) {
  Object entries;
  if (model.at_key("vocab").get(entries) != simdjson::SUCCESS) {
    return wrong_json(context, "vocab", "an object");
  }
  for (const auto entry : entries) {
    int64_t id = 0;
    if (entry.value.get(id) != simdjson::SUCCESS) {
      return wrong_json(context, "vocab", "an object of integers");
    }
    REPRISE_CHECK(vocab.put(entry.key, id, TokenKind::kNormal));
  }
  return {};
}

// "a b" or ["a", "b"].
Status read_merge(const Context& context, Element merge, TokenizerData& data) {
  std::string_view left, right;
  Array pair;
  if (merge.get(left) == simdjson::SUCCESS) {
    const size_t space = left.find(' ', 1);
    if (space == left.npos || space + 1 == left.size()) {
      return fail(ErrorCode::kBadValue, "{}: merge {} is {}, not two tokens", context.file,
                  data.merges.size(), printable(left));
    }
    right = left.substr(space + 1);
    left = left.substr(0, space);
  } else if (merge.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
             pair.at(0).get(left) != simdjson::SUCCESS ||
             pair.at(1).get(right) != simdjson::SUCCESS || left.empty() || right.empty()) {
    return fail(ErrorCode::kBadValue, "{}: merge {} is not two tokens", context.file,
                data.merges.size());
  }
  data.merges.emplace_back(left, right);
  return {};
}

Status read_bpe(const Context& context, Object model, VocabBuilder& vocab, TokenizerData& data) {
  data.model = TokenizerModel::kByteBpe;
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    std::string affix;
    REPRISE_CHECK(read_field(context, model, key, affix));
    if (!affix.empty()) {
      return fail(ErrorCode::kUnsupportedTokenizer, "{}: {} {} is not known", context.file, key,
                  printable(affix));
    }
  }
  REPRISE_CHECK(read_field(context, model, "byte_fallback", data.byte_fallback));
  REPRISE_CHECK(read_field(context, model, "ignore_merges", data.ignore_merges));
  REPRISE_CHECK(read_field(context, model, "fuse_unk", data.fuse_unknown));
  REPRISE_CHECK(read_bpe_vocab(context, model, vocab));
  std::string unknown;
  REPRISE_CHECK(read_field(context, model, "unk_token", unknown));
  if (!unknown.empty()) data.unknown = find_token(data, unknown);
  Array merges;
  if (model.at_key("merges").get(merges) != simdjson::SUCCESS) {
    return wrong_json(context, "merges", "a list");
  }
  for (const Element merge : merges) REPRISE_CHECK(read_merge(context, merge, data));
  return {};
}

Status read_unigram(const Context& context, Object model, VocabBuilder& vocab,
                    TokenizerData& data) {
  data.model = TokenizerModel::kUnigram;
  REPRISE_CHECK(read_field(context, model, "byte_fallback", data.byte_fallback));
  Array entries;
  if (model.at_key("vocab").get(entries) != simdjson::SUCCESS) {
    return wrong_json(context, "vocab", "a list");
  }
  for (const Element entry : entries) {
    Array pair;
    std::string_view text;
    double score = 0;
    if (entry.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
        pair.at(0).get(text) != simdjson::SUCCESS || pair.at(1).get(score) != simdjson::SUCCESS) {
      return wrong_json(context, "vocab", "a list of [token, score]");
    }
    const auto id = static_cast<int64_t>(data.scores.size());
    REPRISE_CHECK(vocab.put(text, id, TokenKind::kNormal));
    data.scores.push_back(static_cast<float>(score));
  }
  uint32_t unknown = std::numeric_limits<uint32_t>::max();
  REPRISE_CHECK(read_field(context, model, "unk_id", unknown));
  if (unknown == std::numeric_limits<uint32_t>::max()) return {};
  if (unknown >= data.tokens.size()) {
    return fail(ErrorCode::kBadValue, "{}: unk_id {} is outside the vocabulary of {}", context.file,
                unknown, data.tokens.size());
  }
  data.unknown = static_cast<int32_t>(unknown);
  return {};
}

Status read_added(const Context& context, Element element, VocabBuilder& vocab,
                  TokenizerData& data) {
  Object object;
  int64_t id = 0;
  AddedToken token;
  if (element.get(object) != simdjson::SUCCESS ||
      object.at_key("id").get(id) != simdjson::SUCCESS) {
    return wrong_json(context, "an entry", "an object with an id");
  }
  REPRISE_CHECK(read_field(context, object, "content", token.text));
  REPRISE_CHECK(read_field(context, object, "special", token.special));
  REPRISE_CHECK(read_field(context, object, "lstrip", token.lstrip));
  REPRISE_CHECK(read_field(context, object, "rstrip", token.rstrip));
  REPRISE_CHECK(read_field(context, object, "single_word", token.single_word));
  REPRISE_CHECK(read_field(context, object, "normalized", token.normalized));
  REPRISE_CHECK(
      vocab.put(token.text, id, token.special ? TokenKind::kControl : TokenKind::kUserDefined));
  token.id = static_cast<int32_t>(id);  // put checked the range
  data.added.push_back(std::move(token));
  return {};
}

Status read_model(std::string_view file, Object root, TokenizerData& data) {
  const Context context{file, "model"};
  const Context added_context{file, "added_tokens"};
  Object model;
  if (root.at_key("model").get(model) != simdjson::SUCCESS) {
    return wrong_json(context, "it", "an object");
  }
  Array added, list;
  Object table;
  const bool has_added = root.at_key("added_tokens").get(added) == simdjson::SUCCESS;
  size_t listed = has_added ? added.size() : 0;
  if (model.at_key("vocab").get(table) == simdjson::SUCCESS) listed += table.size();
  if (model.at_key("vocab").get(list) == simdjson::SUCCESS) listed += list.size();
  VocabBuilder vocab(context, data, listed);

  std::string type;
  REPRISE_CHECK(read_field(context, model, "type", type));
  const bool untyped_bpe = type.empty() && model.at_key("merges").error() == simdjson::SUCCESS;
  if (type == "BPE" || untyped_bpe) {
    REPRISE_CHECK(read_bpe(context, model, vocab, data));
  } else if (type == "Unigram") {
    REPRISE_CHECK(read_unigram(context, model, vocab, data));
  } else {
    return fail(ErrorCode::kUnsupportedTokenizer, "{}: model type {} is not known", file,
                printable(type));
  }
  if (has_added) {
    for (const Element token : added) {
      REPRISE_CHECK(read_added(added_context, token, vocab, data));
    }
  }
  if (!data.scores.empty()) data.scores.resize(data.tokens.size(), 0.0f);
  return {};
}

// Kinds that follow from the model's switches rather than from a list.
void mark_kinds(TokenizerData& data) {
  if (data.unknown && data.kinds[*data.unknown] == TokenKind::kNormal) {
    data.kinds[*data.unknown] = TokenKind::kUnknown;
  }
  if (!data.byte_fallback) return;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (data.kinds[id] == TokenKind::kNormal && byte_of_piece(data.tokens[id])) {
      data.kinds[id] = TokenKind::kByte;
    }
  }
}

Status read_pipeline(std::string_view file, Object root, TokenizerData& data) {
  const auto section = [&](const char* key, auto read) -> Status {
    Element element;
    if (root.at_key(key).get(element) != simdjson::SUCCESS) return {};
    return read(Context{file, key}, element);
  };
  const auto steps_into = [&](std::vector<TokenizerStep>& steps) {
    return [&steps](const Context& context, Element element) -> Status {
      REPRISE_TRY(steps, read_steps(context, element));
      return {};
    };
  };
  REPRISE_CHECK(section("normalizer", steps_into(data.normalizers)));
  REPRISE_CHECK(section("pre_tokenizer", steps_into(data.pre_tokenizers)));
  REPRISE_CHECK(section("decoder", steps_into(data.decoders)));
  return section("post_processor", [&](const Context& context, Element element) {
    return read_post_processor(context, element, data);
  });
}

Result<Object> parse_root(simdjson::dom::parser& parser, std::string_view text,
                          std::string_view name) {
  Element element;
  const auto error = parser.parse(text.data(), text.size()).get(element);
  if (error == simdjson::DEPTH_ERROR) {
    return fail(ErrorCode::kTooDeep, "{}: JSON is nested too deep", name);
  }
  if (error != simdjson::SUCCESS) {
    return fail(ErrorCode::kBadJson, "{}: {}", name, simdjson::error_message(error));
  }
  Object root;
  if (element.get(root) != simdjson::SUCCESS) {
    return fail(ErrorCode::kBadJson, "{}: not a JSON object", name);
  }
  return root;
}

}  // namespace
}  // namespace tokenizer_json

Result<TokenizerData> parse_tokenizer_json(std::string_view text, std::string_view name) {
  TokenizerData data;
  data.add_space_prefix = false;  // tokenizer.json says it in its steps
  simdjson::dom::parser parser;
  REPRISE_TRY(const auto root, tokenizer_json::parse_root(parser, text, name));
  REPRISE_CHECK(tokenizer_json::read_model(name, root, data));
  tokenizer_json::mark_kinds(data);
  REPRISE_CHECK(tokenizer_json::read_pipeline(name, root, data));
  REPRISE_CHECK(finish_tokenizer(data, name));
  return data;
}

}  // namespace reprise
