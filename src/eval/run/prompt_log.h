// The prompts of a run as token ids, so that another engine can answer the same ones.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "eval/run/prompt.h"
#include "eval/trajectory.h"

namespace reprise::eval {

/// One JSON object per line: {"task", "id", "prompt", "gold", "max_tokens", "stop", "references"}
/// of a sample, {"task", "id", "tokens", "first", "steps"} of a text; see TrajectoryPlan.
class PromptLog {
 public:
  /// Writes nothing when path is empty. What is in the file stays until begin(). Errors:
  /// kInvalidArgument where there is something that is not of a run that is resumed,
  /// kFileUnwritable.
  static Result<PromptLog> open(const std::string& path, bool resume);

  /// All prompts are written anew.
  Status begin();
  Status write(std::string_view task, const Engine& engine, const Sample& sample);
  Status write(std::string_view task, const std::string& id, const TrajectoryPlan& plan);

 private:
  Status write_line(const std::string& line);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, std::fclose};
};

}  // namespace reprise::eval
