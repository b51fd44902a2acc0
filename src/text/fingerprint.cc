#include "text/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <initializer_list>
#include <string_view>

namespace reprise {
namespace {

// Every field is written with its length or at a fixed width, so that different data never spell
// the same bytes.
class Hasher {
 public:
  Hasher() { XXH3_64bits_reset(&state_); }

  void add(uint64_t number) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(number >> (8 * i));
    XXH3_64bits_update(&state_, bytes, sizeof bytes);
  }
  void add(std::string_view text) {
    add(uint64_t{text.size()});
    XXH3_64bits_update(&state_, text.data(), text.size());
  }
  void add_flags(std::initializer_list<bool> flags) {
    uint64_t bits = 1;
    for (const bool flag : flags) bits = bits << 1 | (flag ? 1 : 0);
    add(bits);
  }
  void add(std::optional<int32_t> id) {
    add(id ? uint64_t{static_cast<uint32_t>(*id)} : UINT64_MAX);
  }
  uint64_t digest() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

void add_steps(Hasher& hash, const std::vector<TokenizerStep>& steps) {
  hash.add(uint64_t{steps.size()});
  for (const TokenizerStep& step : steps) {
    for (const std::string_view text :
         {step.kind, step.pattern, step.content, step.behavior, step.prepend_scheme}) {
      hash.add(text);
    }
    hash.add_flags({step.pattern_is_regex, step.invert, step.add_prefix_space, step.use_regex,
                    step.individual_digits, step.split});
    hash.add(uint64_t{step.start} << 32 | step.stop);
  }
}

}  // namespace

uint64_t tokenizer_fingerprint(const TokenizerData& data) {
  Hasher hash;
  hash.add(static_cast<uint64_t>(data.model));
  hash.add(uint64_t{data.tokens.size()});
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    hash.add(std::string_view(data.tokens[id]));
    hash.add(static_cast<uint64_t>(data.kinds[id]));
  }
  hash.add(uint64_t{data.scores.size()});
  for (const float score : data.scores) hash.add(uint64_t{std::bit_cast<uint32_t>(score)});
  hash.add(uint64_t{data.merges.size()});
  for (const auto& [left, right] : data.merges) {
    hash.add(std::string_view(left));
    hash.add(std::string_view(right));
  }
  hash.add(uint64_t{data.added.size()});
  for (const AddedToken& token : data.added) {
    hash.add(std::string_view(token.text));
    hash.add(std::optional(token.id));
    hash.add_flags(
        {token.special, token.lstrip, token.rstrip, token.single_word, token.normalized});
  }
  hash.add(std::string_view(data.gguf_pre));
  add_steps(hash, data.normalizers);
  add_steps(hash, data.pre_tokenizers);
  hash.add_flags({data.byte_fallback, data.ignore_merges, data.fuse_unknown, data.add_space_prefix,
                  data.remove_extra_whitespaces, data.add_bos, data.add_eos});
  for (const auto& id : {data.bos, data.eos, data.unknown}) hash.add(id);
  return hash.digest();
}

}  // namespace reprise
