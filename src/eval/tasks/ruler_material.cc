#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_map>
#include <unordered_set>

#include "base/try.h"
#include "eval/tasks/data_files.h"
#include "eval/tasks/ruler.h"

namespace reprise::eval {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLeastKeys = 64;   // pairs, so that drawing a few different ones ends soon
constexpr size_t kLeastWords = 64;  // more than an example of common words has
constexpr uint64_t kMostTokens = 4096;

Result<RulerTemplate> read_template(const Record& file, std::string_view task) {
  Record record{{}, fmt::format("{} tasks.{}", file.where, task)};
  const auto tasks = file.value.find("tasks");
  if (tasks != file.value.end() && tasks->is_object() && tasks->contains(task)) {
    record.value = (*tasks)[std::string(task)];
  }
  RulerTemplate result;
  REPRISE_TRY(result.prompt, record.text("template"));
  REPRISE_TRY(result.answer_prefix, record.text("answer_prefix"));
  const auto tokens = record.value.find("tokens_to_generate");
  if (tokens == record.value.end() || !tokens->is_number_unsigned() ||
      tokens->get<uint64_t>() == 0 || tokens->get<uint64_t>() > kMostTokens) {
    return fail(ErrorCode::kBadValue, "{}: 'tokens_to_generate' must be 1 to {}", record.where,
                kMostTokens);
  }
  result.max_tokens = tokens->get<uint32_t>();
  return result;
}

// Words of letters only: what is counted and looked for must be one word.
Result<std::vector<std::string>> plain_words(const fs::path& path) {
  REPRISE_TRY(std::vector<std::string> words, read_word_list(path));
  std::erase_if(words, [](const std::string& word) {
    return !std::all_of(word.begin(), word.end(),
                        [](unsigned char c) { return c < 0x80 && std::isalpha(c) != 0; });
  });
  if (words.empty()) return fail(ErrorCode::kBadValue, "{}: holds no words", path.string());
  return words;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  return out;
}

bool holds_answer(const std::string& text, const std::vector<std::string>& answers) {
  const std::string low = lower(text);
  return std::any_of(answers.begin(), answers.end(), [&](const std::string& answer) {
    return low.find(lower(answer)) != std::string::npos;
  });
}

// Passages of a file, equal ones once.
class PassagePool {
 public:
  size_t add(std::string text) {
    const auto [found, is_new] = known_.try_emplace(text, set_.passages.size());
    if (is_new) {
      const auto spaces = static_cast<size_t>(std::count(text.begin(), text.end(), ' '));
      set_.passages.push_back({std::move(text), spaces + 1});
    }
    return found->second;
  }
  PassageSet& set() { return set_; }

 private:
  PassageSet set_;
  std::unordered_map<std::string, size_t> known_;
};

// The title, if there is one, as the first line: what RULER does for HotpotQA.
Result<std::string> passage_text(const nlohmann::json& value, const std::string& where) {
  const Record record{value, where};
  REPRISE_TRY(const std::string title, record.text("title"));
  REPRISE_TRY(const std::string text, record.text("text"));
  return title.empty() ? one_line(text) : one_line(title) + "\n" + one_line(text);
}

// Questions of which a passage holds an answer; others cannot be answered and only lend passages.
Result<PassageSet> passage_set(const std::vector<Record>& records) {
  PassagePool pool;
  for (const Record& record : records) {
    PassageQuestion question;
    REPRISE_TRY(question.question, record.text("question"));
    REPRISE_TRY(question.answers, record.texts("answers"));
    const auto list = record.value.find("ctxs");
    if (list == record.value.end() || !list->is_array()) {
      return fail(ErrorCode::kBadValue, "{}: field 'ctxs' must be a list", record.where);
    }
    std::vector<size_t> with_answer, without;
    std::unordered_set<size_t> seen;
    for (const auto& value : *list) {
      REPRISE_TRY(std::string text, passage_text(value, record.where));
      const bool answers = holds_answer(text, question.answers);
      const size_t index = pool.add(std::move(text));
      if (seen.insert(index).second) (answers ? with_answer : without).push_back(index);
    }
    if (with_answer.empty()) continue;
    question.gold = with_answer.front();
    question.others.assign(with_answer.begin() + 1, with_answer.end());
    question.others.insert(question.others.end(), without.begin(), without.end());
    pool.set().questions.push_back(std::move(question));
  }
  if (pool.set().questions.empty()) {
    return fail(ErrorCode::kBadValue, "{}: no question of this file has a passage with its answer",
                records.front().where);
  }
  return std::move(pool.set());
}

Status read_templates(const fs::path& path, RulerMaterial& material) {
  Record file{{}, path.string()};
  REPRISE_TRY(file.value, read_json(path));
  REPRISE_TRY(material.niah, read_template(file, "niah"));
  REPRISE_TRY(material.variable_tracking, read_template(file, "variable_tracking"));
  REPRISE_TRY(material.common_words, read_template(file, "common_words_extraction"));
  REPRISE_TRY(material.frequent_words, read_template(file, "freq_words_extraction"));
  REPRISE_TRY(material.qa, read_template(file, "qa"));
  REPRISE_TRY(material.needle, file.text("needle"));
  REPRISE_TRY(material.noise, file.text("noise_haystack"));
  return {};
}

Status read_words(const fs::path& folder, RulerMaterial& material) {
  REPRISE_TRY(material.adjectives, plain_words(folder / "adjectivelist.txt"));
  REPRISE_TRY(material.nouns, plain_words(folder / "nounlist.txt"));
  if (material.adjectives.size() * material.nouns.size() < kLeastKeys) {
    return fail(ErrorCode::kBadValue, "{}: too few adjectives and nouns for {} keys",
                folder.string(), kLeastKeys);
  }
  REPRISE_TRY(const std::vector<std::string> verbs, plain_words(folder / "verblist.txt"));
  std::unordered_set<std::string> seen;
  const std::array<const std::vector<std::string>*, 3> lists = {&material.nouns,
                                                                &material.adjectives, &verbs};
  for (const auto* list : lists) {
    for (const std::string& word : *list) {
      if (seen.insert(lower(word)).second) material.words.push_back(word);
    }
  }
  if (material.words.size() < kLeastWords) {
    return fail(ErrorCode::kBadValue, "{}: holds {} words, {} are needed", folder.string(),
                material.words.size(), kLeastWords);
  }
  return {};
}

}  // namespace

Result<RulerMaterial> load_ruler_material(const fs::path& data, const TokenCounter& count_tokens) {
  RulerMaterial material;
  const auto folder = data / "ruler";
  REPRISE_CHECK(read_templates(folder / "templates.json", material));
  Record essays{{}, (folder / "PaulGrahamEssays.json").string()};
  REPRISE_TRY(essays.value, read_json(essays.where));
  REPRISE_TRY(const std::string text, essays.text("text"));
  material.essays = std::make_unique<Haystack>(text, count_tokens);
  if (material.essays->size() == 0) {
    return fail(ErrorCode::kBadValue, "{}: field 'text' is empty", essays.where);
  }
  REPRISE_CHECK(read_words(folder / "wonderwords", material));
  REPRISE_TRY(const auto single, read_json_lines(data / "fusion" / "nq-open-oracle.jsonl"));
  REPRISE_TRY(material.single_hop, passage_set(single));
  REPRISE_TRY(const auto multi, read_json_list(data / "fusion" / "musique_s.json"));
  REPRISE_TRY(material.multi_hop, passage_set(multi));
  return material;
}

}  // namespace reprise::eval
