// LongBench v1: the 16 English and code tasks, from the official records, prompts and lengths.
#include <algorithm>
#include <array>
#include <unordered_set>

#include "base/try.h"
#include "eval/metrics/longbench_metrics.h"
#include "eval/tasks/data_files.h"
#include "eval/tasks/prose.h"
#include "eval/tasks/tasks.h"

namespace reprise::eval {
namespace {

struct Subtask {
  std::string_view name;
  bool plain = false;  // few-shot and code: the benchmark gives these without chat template
};

constexpr std::array<Subtask, 16> kSubtasks = {{
    {"narrativeqa"},
    {"qasper"},
    {"multifieldqa_en"},
    {"hotpotqa"},
    {"2wikimqa"},
    {"musique"},
    {"gov_report"},
    {"qmsum"},
    {"multi_news"},
    {"trec", true},
    {"triviaqa", true},
    {"samsum", true},
    {"passage_count"},
    {"passage_retrieval_en"},
    {"lcc", true},
    {"repobench-p", true},
}};
constexpr uint32_t kSummaryTokens = 512;  // answers of that length are not measured by likelihood

struct Configuration {
  std::string prompt;  // with {context} and {input}
  uint32_t max_tokens = 0;
};

Result<Configuration> configuration(const Record& prompts, const Record& lengths,
                                    std::string_view task) {
  Configuration result;
  REPRISE_TRY(result.prompt, prompts.text(task));
  const auto length = lengths.value.find(task);
  if (length == lengths.value.end() || !length->is_number_unsigned() ||
      length->get<uint64_t>() == 0 || length->get<uint64_t>() > 1u << 20) {
    return fail(ErrorCode::kBadValue, "{}: '{}' must be a number of tokens, 1 to 1048576",
                lengths.where, task);
  }
  result.max_tokens = length->get<uint32_t>();
  return result;
}

Result<std::vector<std::string>> classes(const Record& record) {
  const auto found = record.value.find("all_classes");
  if (found == record.value.end() || found->is_null()) return std::vector<std::string>{};
  return record.texts("all_classes");
}

// What the model should go on with: a chat answer starts a line, a plain one goes on with the text.
std::string gold(const Sample& sample) {
  if (sample.max_tokens >= kSummaryTokens) return {};
  const std::string& prompt = sample.messages[0].content;
  const bool inside_line =
      sample.plain && std::string_view(" \n").find(prompt.back()) == std::string_view::npos;
  return (inside_line ? " " : "") + sample.references[0];
}

Result<Sample> make_sample(const Subtask& subtask, const Configuration& configuration,
                           const Record& record) {
  Sample sample;
  REPRISE_TRY(const std::string context, record.text("context"));
  REPRISE_TRY(const std::string input, record.text("input"));
  REPRISE_TRY(const std::string id, record.text("_id"));
  REPRISE_TRY(sample.references, record.texts("answers"));
  REPRISE_TRY(std::vector<std::string> names, classes(record));
  sample.id = fmt::format("{}/{}", subtask.name, id);
  std::string prompt = fill(configuration.prompt, {{"context", context}, {"input", input}});
  if (prompt.empty()) return fail(ErrorCode::kBadValue, "{}: the prompt is empty", record.where);
  sample.messages = {{"user", std::move(prompt)}};
  sample.plain = subtask.plain;
  sample.cut_middle = true;
  sample.max_tokens = configuration.max_tokens;
  // The benchmark stops samsum at a newline behind at least one token, and scores the first line
  // only. Stopping where the next example would begin gives the same line, and never an empty one.
  if (subtask.name == "samsum") sample.stop = {"\nDialogue:"};
  sample.gold = gold(sample);
  sample.score = [task = subtask.name, references = sample.references,
                  names = std::move(names)](std::string_view answer) {
    Scores scores = longbench_scores(task, answer, references, names);
    const double headline = scores.empty() ? 0.0 : scores.front().second;
    scores.emplace(scores.begin(), "score", headline);
    return scores;
  };
  return sample;
}

Result<std::vector<Sample>> load_subtask(const std::filesystem::path& path, const Subtask& subtask,
                                         const Configuration& configuration, size_t limit) {
  REPRISE_TRY(const std::vector<Record> records, read_json_lines(path));
  std::vector<Sample> samples;
  std::unordered_set<std::string> ids;
  for (const Record& record : records) {
    if (samples.size() == limit) break;
    REPRISE_TRY(Sample sample, make_sample(subtask, configuration, record));
    if (!ids.insert(sample.id).second) {
      return fail(ErrorCode::kBadValue, "{}: the _id of an earlier record", record.where);
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

// Subtasks take turns, so that a limit leaves some of each.
std::vector<Sample> interleave(std::vector<std::vector<Sample>> groups, size_t limit) {
  std::vector<Sample> samples;
  for (size_t round = 0, before = 0; samples.size() < limit; ++round, before = samples.size()) {
    for (auto& group : groups) {
      if (round < group.size() && samples.size() < limit) {
        samples.push_back(std::move(group[round]));
      }
    }
    if (samples.size() == before) break;
  }
  return samples;
}

}  // namespace

Result<TaskData> load_longbench(const TaskContext& context) {
  const auto folder = context.data / "longbench";
  Record prompts{{}, (folder / "dataset2prompt.json").string()};
  Record lengths{{}, (folder / "dataset2maxlen.json").string()};
  REPRISE_TRY(prompts.value, read_json(prompts.where));
  REPRISE_TRY(lengths.value, read_json(lengths.where));
  const size_t limit = context.limit > 0 ? context.limit : SIZE_MAX;

  TaskData data;
  std::vector<std::vector<Sample>> groups;
  for (const Subtask& subtask : kSubtasks) {
    const auto path = folder / fmt::format("{}.jsonl", subtask.name);
    REPRISE_TRY(const Configuration config, configuration(prompts, lengths, subtask.name));
    auto samples = load_subtask(path, subtask, config, limit);
    if (samples) {
      groups.push_back(std::move(*samples));
    } else if (samples.error().code == ErrorCode::kFileNotFound) {
      data.notes.push_back(fmt::format("{} is left out: no file {}", subtask.name, path.string()));
    } else {
      return tl::unexpected<Error>(std::move(samples.error()));
    }
  }
  if (groups.empty()) return missing(folder / "*.jsonl");
  data.samples = interleave(std::move(groups), limit);
  return data;
}

}  // namespace reprise::eval
