#include <cmath>
#include <limits>

#include "formats/bad_files.h"
#include "formats/gguf_builder.h"
#include "formats/tokenizer_data.h"

namespace reprise::test {
namespace {

using enum ErrorCode;

// A tokenizer of a model family without the keys that a case replaces.
struct Keys {
  std::string model = "gpt2";
  std::vector<std::string> tokens{"a", "b", "ab"};
  bool with_merges = true, with_scores = true;
};

GgufBuilder tokenizer(const Keys& keys) {
  GgufBuilder builder;
  builder.add("tokenizer.ggml.model", keys.model);
  builder.add_strings("tokenizer.ggml.tokens", keys.tokens);
  if (keys.with_merges) builder.add_strings("tokenizer.ggml.merges", {"a b"});
  if (keys.with_scores) builder.add_array<float>("tokenizer.ggml.scores", {0, 0, 0});
  return builder;
}
GgufBuilder gpt2() { return tokenizer({}); }

BadFile bad(std::string name, ErrorCode code, const GgufBuilder& file) {
  return {"gguf_tokenizer_" + std::move(name), code, [bytes = file.build()]() -> Status {
            const auto parsed = GgufFile::parse(as_bytes(bytes), kBadName);
            if (!parsed) return fail(kUnsupported, "the file itself is bad");
            return status_of(read_gguf_tokenizer(*parsed));
          }};
}

}  // namespace

std::vector<BadFile> bad_gguf_tokenizers() {
  const std::string key = "tokenizer.ggml.";
  const float infinity = std::numeric_limits<float>::infinity();
  const Keys no_merges{.with_merges = false};
  const Keys unscored{.model = "llama", .with_scores = false};
  return {
      bad("absent", kTokenizerMissing, GgufBuilder().add("general.name", "x")),
      bad("no_vocab", kTokenizerMissing, tokenizer({.model = "no_vocab"})),
      bad("none", kTokenizerMissing, tokenizer({.model = "none"})),
      bad("model_unknown", kUnsupportedTokenizer, tokenizer({.model = "rwkv"})),
      bad("model_number", kBadType, GgufBuilder().add(key + "model", 1u)),
      bad("no_tokens", kMissingKey, GgufBuilder().add(key + "model", "gpt2")),
      bad("tokens_numbers", kBadType,
          GgufBuilder().add(key + "model", "gpt2").add_array<float>(key + "tokens", {1, 2})),
      bad("tokens_text", kBadType,
          GgufBuilder().add(key + "model", "gpt2").add(key + "tokens", "a b")),
      bad("tokens_empty", kBadCount, tokenizer({.tokens = {}})),
      bad("types_too_few", kBadCount, gpt2().add_array<int32_t>(key + "token_type", {1, 1})),
      bad("types_too_many", kBadCount, gpt2().add_array<int32_t>(key + "token_type", {1, 1, 1, 1})),
      bad("types_text", kBadType, gpt2().add(key + "token_type", "normal")),
      bad("type_7", kBadValue, gpt2().add_array<int32_t>(key + "token_type", {1, 7, 1})),
      bad("type_negative", kBadValue, gpt2().add_array<int32_t>(key + "token_type", {1, -1, 1})),
      bad("byte_token_minus_1", kBadValue,
          tokenizer({.model = "llama", .tokens = {"a", "<0x-1>", "b"}})
              .add_array<int32_t>(key + "token_type", {1, 6, 1})),
      bad("byte_token_plain", kBadValue, gpt2().add_array<int32_t>(key + "token_type", {1, 6, 1})),
      bad("no_merges", kMissingKey, tokenizer(no_merges)),
      bad("merges_numbers", kBadType,
          tokenizer(no_merges).add_array<int32_t>(key + "merges", {1, 2})),
      bad("merge_one_token", kBadValue, tokenizer(no_merges).add_strings(key + "merges", {"ab"})),
      bad("merge_empty", kBadValue, tokenizer(no_merges).add_strings(key + "merges", {""})),
      bad("merge_no_right", kBadValue, tokenizer(no_merges).add_strings(key + "merges", {"a "})),
      bad("merge_only_space", kBadValue, tokenizer(no_merges).add_strings(key + "merges", {" "})),
      bad("no_scores", kMissingKey, tokenizer(unscored)),
      bad("scores_too_few", kBadCount,
          tokenizer(unscored).add_array<float>(key + "scores", {0.0f, 0.0f})),
      bad("scores_infinite", kBadValue,
          tokenizer(unscored).add_array<float>(key + "scores", {0.0f, infinity, 0.0f})),
      bad("scores_nan", kBadValue,
          tokenizer(unscored).add_array<float>(key + "scores", {0.0f, std::nanf(""), 0.0f})),
      bad("scores_too_large", kBadValue,
          tokenizer(unscored).add_array<double>(key + "scores", {0.0, 1e300, 0.0})),
      bad("bos_outside", kBadValue, gpt2().add(key + "bos_token_id", 3u)),
      bad("eos_outside", kBadValue, gpt2().add(key + "eos_token_id", 1u << 20)),
      bad("unknown_outside", kBadValue, gpt2().add(key + "unknown_token_id", 3u)),
      bad("pad_outside", kBadValue, gpt2().add(key + "padding_token_id", 3u)),
      bad("eot_outside", kBadValue, gpt2().add(key + "eot_token_id", 3u)),
      bad("eom_beyond_int32", kBadValue, gpt2().add(key + "eom_token_id", uint64_t{1} << 40)),
      bad("bos_wraps_to_0", kBadValue, gpt2().add(key + "bos_token_id", uint64_t{1} << 32)),
      bad("eos_negative", kBadType, gpt2().add(key + "eos_token_id", -2)),
      bad("eos_text", kBadType, gpt2().add(key + "eos_token_id", "</s>")),
      bad("add_bos_number", kBadType, gpt2().add(key + "add_bos_token", 1u)),
      bad("add_space_prefix_text", kBadType, gpt2().add(key + "add_space_prefix", "yes")),
      bad("pre_number", kBadType, gpt2().add(key + "pre", 1u)),
      bad("template_number", kBadType, gpt2().add("tokenizer.chat_template", 1u)),
  };
}

}  // namespace reprise::test
