// What makes two runs the same run: hashes of weights, samples and settings.
#pragma once

#include <string>

#include "eval/records.h"
#include "eval/task.h"
#include "reprise/error.h"

namespace reprise::eval {

/// 16 hex digits from the bytes of a GGUF file, or of a folder's weights and configuration: their
/// sizes, beginnings and ends, and pieces in between, so that large models take no time. Of a
/// random model, from its name.
/// Errors: those of MappedFile::open.
Result<std::string> weights_identity(const std::string& path);

/// 16 hex digits of everything that a task asks: ids and texts.
std::string task_identity(const TaskData& data);

/// Sets id from all fields but time.
void set_run_id(RunRecord& run);

/// "2026-01-31T12:00:00Z", now.
std::string utc_time();

/// CPU model and threads: "Intel(R) ..., 2 threads".
std::string machine_name(uint32_t threads);

}  // namespace reprise::eval
