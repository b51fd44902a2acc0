// How the 13 tasks of RULER make a sample. The construction follows Hsieh et al. 2024 (arXiv
// 2404.06654) and its public generator; every sample is drawn anew (order, depth, words), where
// that generator repeats the order of needles and documents in all samples of a length.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "eval/tasks/prose.h"
#include "eval/tasks/rng.h"
#include "reprise/error.h"

namespace reprise::eval {

struct RulerTemplate {
  std::string prompt, answer_prefix;  // with {names}
  uint32_t max_tokens = 0;
};

struct Passage {
  std::string text;
  size_t words = 0;
};

/// A question with the passage that answers it and the passages it came with.
struct PassageQuestion {
  std::string question;
  std::vector<std::string> answers;
  size_t gold = 0;             // index of a passage
  std::vector<size_t> others;  // its own other passages, those with the answer first
};

struct PassageSet {
  std::vector<Passage> passages;
  std::vector<PassageQuestion> questions;
};

/// What all samples draw from.
struct RulerMaterial {
  RulerTemplate niah, variable_tracking, common_words, frequent_words, qa;
  std::string needle;  // sentence with {type_needle_v}, {key}, {value}
  std::string noise;
  std::unique_ptr<Haystack> essays;
  std::vector<std::string> adjectives, nouns;
  std::vector<std::string> words;  // both and verbs, without repeats
  PassageSet single_hop, multi_hop;
};

/// kFileNotFound, kBadJson or kBadValue names the file below data/ruler or data/fusion.
Result<RulerMaterial> load_ruler_material(const std::filesystem::path& data,
                                          const TokenCounter& count_tokens);

/// A sample before its length is known to be right.
struct RulerDraft {
  std::string prompt, answer_prefix, gold;
  std::vector<std::string> references;
  size_t gold_at = std::string::npos;  // offset in prompt of what is asked for
};

struct RulerTask {
  std::string_view name;
  uint32_t max_tokens = 0;
  bool any_reference = false;  // scored by the best reference instead of the share of all
  size_t least_units = 0, most_units = 0;
  /// units: what grows with the length (sentences, needles, words).
  std::function<RulerDraft(Rng rng, uint32_t length, size_t units)> draft;
};

std::vector<RulerTask> niah_tasks(const RulerMaterial& material);
RulerTask variable_tracking_task(const RulerMaterial& material);
RulerTask common_words_task(const RulerMaterial& material);
RulerTask frequent_words_task(const RulerMaterial& material);
std::vector<RulerTask> passage_tasks(const RulerMaterial& material);

}  // namespace reprise::eval
