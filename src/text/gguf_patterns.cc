// Which expressions each tokenizer.ggml.pre stands for: facts of the models' own tokenizer files.
#include <array>

#include "text/pre_tokenizer.h"

namespace reprise {

#define REPRISE_GPT2 R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"

const std::string_view kGpt2Pattern = REPRISE_GPT2;

namespace {

constexpr std::string_view kGpt2 = REPRISE_GPT2;
#undef REPRISE_GPT2

constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";
constexpr std::string_view kLineBreak = R"([\r\n])";

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBailing = R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}|)"
                                      R"( ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}|)"
    R"( ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
// Letters of scripts that have case.
constexpr std::string_view kDeepseekLetters =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ)"
    R"(Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼ)"
    R"(ℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ)"
    R"(𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";

struct Family {
  std::array<std::string_view, 5> patterns;  // unused ones are empty
  std::string_view names;                    // separated by spaces
};

constexpr Family kFamilies[] = {
    {{kLlama3},
     "llama-bpe llama3 llama-v3 dbrx smaug-bpe glm4 chatglm-bpe falcon3 falcon-h1 pixtral midm-2.0 "
     "lfm2"},
    {{kQwen2}, "qwen2 stablelm2 hunyuan deepseek-r1-qwen megrez grok-2"},
    {{kDigit, kGpt2}, "smollm starcoder refact command-r codeshell exaone minerva-7b"},
    {{kGpt2},
     "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat exaone4 modern-bert roberta-bpe "
     "a.x-4.0 mellum"},
    {{kTekken}, "tekken"},
    {{kGpt4o}, "gpt-4o llama4 kanana2 minimax-m2"},
    {{kLineBreak, R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", kDigit},
     "deepseek-coder"},
    {{kLineBreak, kDeepseekLetters, R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)", R"(\s+$)",
      // The last two of its six expressions share no character.
      R"([一-龥ࠀ-一가-퟿]+|\p{N}+)"},
     "deepseek-llm"},
    {{R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepseek3}, "deepseek-v3 hunyuan-dense"},
    {{R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, kThreeDigits}, "falcon"},
    {{kBloom}, "bloom poro-chat gpt3-finnish"},
    {{kBloom, kDigit}, "viking"},
    {{kBailing}, "bailingmoe bailingmoe2 llada-moe"},
    {{kSeedCoder}, "seed-coder"},
    // Files older than tokenizer.ggml.pre.
    {{R"([\p{P}\$\+<=>\^\~\|]+)", kGpt2, R"(\p{N}+)", kThreeDigits}, "default"},
};

bool lists(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t space = std::min(names.find(' '), names.size());
    if (names.substr(0, space) == name) return true;
    names.remove_prefix(std::min(space + 1, names.size()));
  }
  return false;
}

}  // namespace

std::vector<std::string_view> gguf_split_patterns(std::string_view name) {
  if (name.empty()) name = "default";
  for (const Family& family : kFamilies) {
    if (!lists(family.names, name)) continue;
    std::vector<std::string_view> patterns;
    for (const std::string_view pattern : family.patterns) {
      if (!pattern.empty()) patterns.push_back(pattern);
    }
    return patterns;
  }
  return {};
}

}  // namespace reprise
