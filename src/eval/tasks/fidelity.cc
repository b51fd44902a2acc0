// Fidelity to full attention: slices of books, essays and the contexts of LongBench in turn.
#include "base/try.h"
#include "eval/tasks/data_files.h"
#include "eval/tasks/documents.h"
#include "eval/tasks/rng.h"
#include "eval/tasks/tasks.h"

namespace reprise::eval {
namespace {

// English records whose context is long enough to be read to the end of the model's context.
Result<std::vector<TextSource>> longbench_contexts(const TaskContext& context) {
  constexpr size_t kBytesPerToken = 5;
  std::vector<TextSource> sources;
  for (const auto& path : files_below(context.data / "longbench", ".jsonl")) {
    REPRISE_TRY(const std::vector<Record> records, read_json_lines(path));
    for (size_t i = 0; i < records.size(); ++i) {
      REPRISE_TRY(const std::string language, records[i].text("language"));
      REPRISE_TRY(std::string text, records[i].text("context"));
      if (language == "zh" || text.size() < kBytesPerToken * context.context) continue;
      sources.push_back({fmt::format("{}-{}", path.stem().string(), i + 1), std::move(text)});
    }
  }
  Rng(context.seed, "fidelity/longbench").shuffle(sources);
  return sources;
}

// Adds a group of texts; that a kind is absent is no error as long as another is there.
Status add_group(Result<std::vector<TextSource>> group,
                 std::vector<std::vector<TextSource>>& groups, std::vector<std::string>& notes) {
  if (group) {
    if (!group->empty()) groups.push_back(std::move(*group));
    return {};
  }
  if (group.error().code != ErrorCode::kFileNotFound) return tl::unexpected<Error>(group.error());
  notes.push_back(group.error().message);
  return {};
}

}  // namespace

Result<TaskData> load_fidelity(const TaskContext& context) {
  constexpr size_t kDocuments = 20;
  TaskData data;
  std::vector<std::vector<TextSource>> groups;
  REPRISE_CHECK(add_group(load_books(context.data), groups, data.notes));
  REPRISE_CHECK(add_group(
      load_essays(context.data).map([](const TextSource& essays) { return std::vector{essays}; }),
      groups, data.notes));
  REPRISE_CHECK(add_group(longbench_contexts(context), groups, data.notes));
  if (groups.empty()) return missing(context.data / "books" / "*.txt");
  data.documents = take_slices(groups, context, context.limit > 0 ? context.limit : kDocuments);
  return data;
}

}  // namespace reprise::eval
