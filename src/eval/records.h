// The lines of a run file: one JSON object per line, "type" first, appended and flushed one by one.
//
// Schema 1. Readers ignore fields they do not know. Two runs with the same seed have equal lines
// but for "time" and "timing". A number that is not finite is written as null and read as NaN.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "eval/sample.h"
#include "reprise/error.h"

namespace reprise::eval {

using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// {"type":"run"}: one policy over some tasks; lines that follow name it by id.
struct RunRecord {
  uint32_t schema = 1;
  std::string id;            // of the file's run: hash of everything below but time
  std::string time;          // ISO 8601, UTC
  std::string version;       // of the engine
  std::string model;         // name
  std::string model_sha256;  // first 16 hex digits of the weights' identity
  std::string quantization, kv_type;
  uint64_t weight_bytes = 0;  // read by one decode step; 0 when unknown
  std::string machine;        // CPU model and threads
  std::string policy;         // spec as given
  std::string scope;          // decode | teacher | tail:N | teacher:N
  uint64_t context = 0;       // limit in tokens; 0 when unknown
  uint64_t seed = 0;
  std::vector<std::pair<std::string, std::string>> data;  // task -> hash of its samples
};

/// {"type":"sample"}
struct SampleRecord {
  std::string run, task, id;
  uint64_t prompt_tokens = 0, generated_tokens = 0;
  bool truncated = false;
  std::string finish;      // finish_reason_name, or "failed"
  std::string error;       // when failed
  std::string prediction;  // empty for trajectories
  std::vector<std::string> references;
  Scores scores;
  Axes axes;
  /// kv_bytes_per_token, full_kv_bytes_per_token, index_bytes_read_per_token, index_bytes, ...
  NamedNumbers counters;
  NamedNumbers timing;  // ms: prefill, ttft, tpot_p50, select, and the policy's own

  bool failed() const { return finish == "failed"; }
};

/// {"type":"step"}: one decoded position of a trajectory (ppl, fidelity); written with --steps or
/// where a report needs positions.
struct StepRecord {
  std::string run, task, id;
  uint64_t position = 0;
  NamedNumbers values;  // nll, kl, top1, ...
};

/// {"type":"summary"}: one task of one run.
struct SummaryRecord {
  std::string run, task, metric;
  uint64_t n = 0, failed = 0;
  double score = 0, low = 0, high = 0;  // mean and its 95 % bootstrap interval
  NamedNumbers counters;                // means over samples
};

/// Everything in a run file, or in several that were read one after another.
struct RunFile {
  std::string path;  // of the file read last
  std::vector<RunRecord> runs;
  std::vector<SampleRecord> samples;
  std::vector<StepRecord> steps;
  std::vector<SummaryRecord> summaries;
};

/// One line of a run file, without the newline at its end.
std::string to_line(const RunRecord&);
std::string to_line(const SampleRecord&);
std::string to_line(const StepRecord&);
std::string to_line(const SummaryRecord&);

/// Appends a file's records to into. A last line that was cut short by a crash is ignored; any
/// other malformed line is kBadJson naming file and line, as is a line of a run that no line before
/// it declares. kUnsupportedVersion: a run of a later schema.
Status read_run_file(const std::string& path, RunFile& into);

}  // namespace reprise::eval
