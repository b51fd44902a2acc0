// Honest timing: every subject measured in turn, round after round, on the same weights.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "reprise/engine.h"

namespace reprise {

struct BenchOptions {
  uint32_t max_tokens = 16;
  uint32_t rounds = 3;
  uint32_t sequences = 1;
  bool prefill = true;
  uint32_t prefill_max = 8192;
};

template <class Visitor>
void visit_options(BenchOptions& o, Visitor&& visit) {
  visit(OptionSpec{"max-tokens", "tokens decoded in a round", "tokens", 2, 4096}, o.max_tokens);
  visit(OptionSpec{"rounds", "times that every subject is measured", "", 1, 1000}, o.rounds);
  visit(OptionSpec{"sequences", "sequences decoded together", "", 1, 1024}, o.sequences);
  visit(OptionSpec{"prefill", "measure reading prompts too"}, o.prefill);
  visit(OptionSpec{"prefill-max", "longest context whose prefill is measured", "tokens"},
        o.prefill_max);
}

struct BenchPlan {
  EngineOptions engine;
  BenchOptions bench;
  std::vector<uint32_t> contexts = {128, 2048, 8192};
  std::vector<std::string> policies = {"full"};
  std::string peer;  ///< "" or "llama.cpp"
};

/// One line of the result. Ratios are other's time / own time, so above 1 is faster; 0 = not
/// measured.
struct BenchRow {
  std::string phase;   ///< "decode" or "prefill"
  std::string policy;  ///< or the peer's name
  uint32_t context = 0, batch = 1;
  double median_ms = 0, p99_ms = 0;  ///< decode: of a step; prefill: of the whole prompt
  double tok_s = 0;
  double bytes_per_token = 0;  ///< decode: weights and KV that a step reads / batch
  double flops_per_token = 0;  ///< prefill: of matrices and attention
  double roof_gb_s = 0;  ///< decode: measured read bandwidth of a working set of that many bytes
  double roof_pct = 0;   ///< of that bandwidth (decode), or of bf16 throughput (prefill)
  double vs_full = 0, vs_peer = 0;
  std::string note;  ///< e.g. the peer's setting that was faster
};

struct BenchReport {
  MachineRoof machine;
  ModelInfo model;
  uint32_t threads = 0;
  std::vector<BenchRow> rows;
};

/// progress: stage "bench", unit "measurements". Errors: those of Engine::load and
/// Session::generate; kUnsupported when the peer is not installed or failed, with what it said.
Result<BenchReport> run_bench(const BenchPlan& plan, const ProgressFn& progress = {});

/// The report as one JSON object, and as a Markdown table.
nlohmann::ordered_json bench_json(const BenchReport& report);
std::string bench_markdown(const BenchReport& report);

}  // namespace reprise
