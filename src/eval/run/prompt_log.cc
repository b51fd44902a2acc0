#include "eval/run/prompt_log.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/try.h"

namespace reprise::eval {
namespace {

constexpr std::string_view kStart = R"({"task":)";  // of every line

}  // namespace

Result<PromptLog> PromptLog::open(const std::string& path, bool resume) {
  namespace fs = std::filesystem;
  PromptLog log;
  if (path.empty()) return log;
  log.path_ = path;
  std::error_code error;
  const bool exists = fs::is_regular_file(path, error) && fs::file_size(path, error) > 0;
  std::string start(std::size(kStart), '\0');
  if (exists) std::ifstream(path, std::ios::binary).read(start.data(), std::ssize(start));
  if (exists && !(resume && start == kStart))
    return fail(ErrorCode::kInvalidArgument, "{} exists; choose another --prompts", path);
  log.file_.reset(std::fopen(path.c_str(), "ab"));
  if (log.file_) return log;
  return fail(ErrorCode::kFileUnwritable, "{}: {}", path, std::strerror(errno));
}

Status PromptLog::begin() {
  std::error_code other;  // a pipe has nothing to remove
  if (file_ && std::filesystem::is_regular_file(path_, other) &&
      ::ftruncate(::fileno(file_.get()), 0) != 0)
    return fail(ErrorCode::kFileUnwritable, "{}: {}", path_, std::strerror(errno));
  return {};
}

Status PromptLog::write(std::string_view task, const Engine& engine, const Sample& sample) {
  if (!file_) return {};
  const auto prompt = build_prompt(engine, sample);
  if (!prompt) return {};  // the run tells why
  const nlohmann::ordered_json json = {{"task", task},
                                       {"id", sample.id},
                                       {"prompt", prompt->tokens},
                                       {"gold", gold_tokens(engine, sample)},
                                       {"max_tokens", sample.max_tokens},
                                       {"stop", sample.stop},
                                       {"references", sample.references}};
  return write_line(json.dump());
}

Status PromptLog::write(std::string_view task, const std::string& id, const TrajectoryPlan& plan) {
  if (!file_) return {};
  const nlohmann::ordered_json json = {{"task", task},
                                       {"id", id},
                                       {"tokens", plan.tokens},
                                       {"first", plan.first},
                                       {"steps", plan.steps}};
  return write_line(json.dump());
}

Status PromptLog::write_line(const std::string& line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
                       std::fputc('\n', file_.get()) != EOF && std::fflush(file_.get()) == 0;
  if (written) return {};
  return fail(ErrorCode::kFileUnwritable, "{}: {}", path_, std::strerror(errno));
}

}  // namespace reprise::eval
