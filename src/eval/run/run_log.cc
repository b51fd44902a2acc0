#include "eval/run/run_log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/mapped_file.h"
#include "base/try.h"

namespace reprise::eval {
namespace {

namespace fs = std::filesystem;

// Lines are written sample by sample, steps before the sample that they belong to: what comes after
// the last line of another type is not complete.
size_t complete_size(std::string_view text) {
  constexpr std::string_view kStep = "{\"type\":\"step\"";
  size_t end = text.rfind('\n') + 1;  // npos + 1 is 0
  while (end > 0) {
    const size_t before = end > 1 ? text.rfind('\n', end - 2) : std::string_view::npos;
    const size_t start = before == std::string_view::npos ? 0 : before + 1;
    if (!text.substr(start).starts_with(kStep)) break;
    end = start;
  }
  return end;
}

Status cut_incomplete(const std::string& path) {
  constexpr std::string_view kRun = "{\"type\":\"run\"";
  size_t size = 0, complete = 0;
  {
    REPRISE_TRY(const MappedFile file, MappedFile::open(path));
    size = file.bytes().size();
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), size);
    if (!text.starts_with(kRun)) {
      return fail(ErrorCode::kInvalidArgument, "{} is no run file; choose another --out", path);
    }
    complete = complete_size(text);
  }
  if (complete == size) return {};
  std::error_code error;
  fs::resize_file(path, complete, error);
  if (error) return fail(ErrorCode::kFileUnwritable, "{}: {}", path, error.message());
  return {};
}

// What two runs of one policy differ in, as a user would say it.
std::string difference(const RunRecord& a, const RunRecord& b) {
  if (a.model_sha256 != b.model_sha256) return "another model";
  if (a.scope != b.scope) return fmt::format("scope {}", a.scope);
  if (a.context != b.context && a.context > 0)
    return fmt::format("a context of {} tokens", a.context);
  if (a.seed != b.seed) return fmt::format("seed {}", a.seed);
  if (a.data != b.data) return "other tasks or samples";
  if (a.machine != b.machine) return "machine " + a.machine;
  return "another version or KV type";
}

}  // namespace

Result<RunLog> RunLog::open(const std::string& path, std::span<const RunRecord> runs, bool resume) {
  RunLog log;
  log.path_ = path;
  std::error_code error;
  std::set<std::string> declared;
  const bool exists = fs::is_regular_file(path, error) && fs::file_size(path, error) > 0;
  if (exists && !resume)
    return fail(ErrorCode::kInvalidArgument,
                "{} exists; go on with it by --resume, or choose another --out", path);
  if (exists) REPRISE_CHECK(log.load(runs, declared));
  log.file_.reset(std::fopen(path.c_str(), "ab"));
  if (!log.file_) return fail(ErrorCode::kFileUnwritable, "{}: {}", path, std::strerror(errno));
  std::string lines;
  for (const RunRecord& run : runs)
    if (!declared.contains(run.id)) lines += to_line(run) + "\n";
  REPRISE_CHECK(log.write(lines));
  return log;
}

Status RunLog::load(std::span<const RunRecord> runs, std::set<std::string>& declared) {
  REPRISE_CHECK(cut_incomplete(path_));
  RunFile file;
  REPRISE_CHECK(read_run_file(path_, file));
  for (const RunRecord& run : file.runs) declared.insert(run.id);
  for (const RunRecord& run : runs) {
    if (declared.contains(run.id)) continue;
    const auto other = std::find_if(file.runs.begin(), file.runs.end(),
                                    [&](const RunRecord& old) { return old.policy == run.policy; });
    if (other != file.runs.end())
      return fail(ErrorCode::kInvalidArgument,
                  "{} holds a run of {} with {}; repeat its options to resume it, or choose "
                  "another --out",
                  path_, run.policy, difference(*other, run));
  }
  for (const SampleRecord& sample : file.samples)
    if (!sample.failed()) done_.emplace(sample.run, sample.task, sample.id);
  return {};
}

Status RunLog::write(std::string_view lines) {
  errno = 0;
  if (std::fwrite(lines.data(), 1, lines.size(), file_.get()) == lines.size() &&
      std::fflush(file_.get()) == 0)
    return {};
  return fail(ErrorCode::kFileUnwritable, "{}: {}", path_, std::strerror(errno));
}

}  // namespace reprise::eval
