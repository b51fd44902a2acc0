// A task turns files and a seed into samples or documents. Registry: task_entries().
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/sample.h"
#include "reprise/error.h"

namespace reprise::eval {

struct TaskContext {
  std::filesystem::path data;  // folder of --data; empty when not given
  uint64_t seed = 1234;
  uint32_t limit = 0;             // samples at most; 0 = the task's own number
  std::vector<uint32_t> lengths;  // tokens of a prompt; empty = the task's own
  uint32_t context = 8192;        // tokens that prompt and answer may have together
  uint32_t template_tokens = 64;  // of these, what the chat template takes at most
  std::function<size_t(std::string_view)> count_tokens;  // of a text; must be set
};

/// What a task gives: samples to answer, or documents to read token by token.
struct TaskData {
  std::vector<Sample> samples;
  std::vector<Document> documents;
  std::vector<std::string> notes;  // what was left out or replaced, and why: to be shown
};

struct TaskEntry {
  std::string_view name;
  std::string_view summary;   // one line
  std::string_view files;     // what it reads below --data; empty when it is generated
  std::string_view headline;  // the score that summaries and comparisons show
  /// kFileNotFound names the missing file and where to get it; kBadJson or kBadValue names a
  /// malformed record's file and line.
  Result<TaskData> (*load)(const TaskContext& context);
  bool takes_lengths = true;  // else its prompts are as they are, whatever --lengths says
};

/// ppl, needle, passkey, ruler, longbench, gsm8k, dialogue, fidelity.
std::span<const TaskEntry> task_entries();

}  // namespace reprise::eval
