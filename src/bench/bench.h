// Honest timing: every subject measured in turn, round after round, on the same weights.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/attention_bench.h"
#include "bench/machine.h"
#include "reprise/engine.h"

namespace reprise {

struct BenchOptions {
  uint32_t max_tokens = 16;
  uint32_t rounds = 3;
  uint32_t sequences = 1;
  bool copy_prompt = false;
  bool prefill = true;
  uint32_t prefill_max = 8192;
  uint32_t peer_max = 8192;
  std::string measure = "all";
};

template <class Visitor>
void visit_options(BenchOptions& o, Visitor&& visit) {
  visit(OptionSpec{"max-tokens", "tokens decoded in a turn", "tokens", 2, 4096}, o.max_tokens);
  visit(
      OptionSpec{"rounds", "turns of every subject; five times as many of decoding, which is short",
                 "", 1, 1000},
      o.rounds);
  visit(OptionSpec{"sequences", "the batch that is measured: sequences decoded together", "", 1,
                   1024},
        o.sequences);
  visit(OptionSpec{"copy-prompt",
                   "only the first of several sequences reads its prompt; the others get copies of "
                   "its KV in pages of their own (with --no-prefill)"},
        o.copy_prompt);
  visit(OptionSpec{"prefill", "measure reading prompts too"}, o.prefill);
  visit(OptionSpec{"prefill-max", "longest context whose prefill is measured", "tokens"},
        o.prefill_max);
  visit(
      OptionSpec{"peer-max", "longest context the peer is measured at; it reads slowly", "tokens"},
      o.peer_max);
  visit(OptionSpec{"measure",
                   "engine: its passes; attention: a layer's kernels, on a GPU; fusion: the first "
                   "token of prompts whose chunks are stored (not part of all)",
                   "", 0, 0, "all|engine|attention|fusion"},
        o.measure);
}

/// What --peer takes: another engine, and the attention kernels of libraries.
inline constexpr std::string_view kEnginePeer = "llama.cpp", kAttentionPeer = "torch";

struct BenchReport;

struct BenchPlan {
  EngineOptions engine;
  BenchOptions bench;
  std::vector<uint32_t> contexts = {128, 2048, 8192};
  std::vector<std::string> policies = {"full"};
  std::string peer;  ///< "", kEnginePeer or kAttentionPeer
  std::vector<std::string> fusions = {"a3"};
  std::string store;                 ///< folder for the chunks of prompts; "": a temporary one
  uint64_t store_memory = 0;         ///< where they are kept at hand, too
  std::string store_codec = "none";  ///< how they are kept
  /// Called when a context is done, with the report so far and the index of its first row.
  std::function<void(const BenchReport& report, size_t first_row)> on_rows;
};

/// One line of the result. Ratios are other's time / own time, so above 1 is faster; 0 = not
/// measured.
struct BenchRow {
  std::string phase;   ///< "decode" or "prefill"
  std::string policy;  ///< or the peer's name
  uint32_t context = 0, batch = 1;
  double median_ms = 0, p99_ms = 0;  ///< decode: of a step; prefill: of the whole prompt
  double tok_s = 0;
  double select_ms = 0;              ///< decode: of a step, the time the policy took to choose keys
  double bytes_per_token = 0;        ///< decode: weights, KV and index that a step reads / batch
  double index_bytes_per_token = 0;  ///< decode: of these, the policy's own structures
  double flops_per_token = 0;        ///< prefill: of matrices and attention
  /// decode: read bandwidth of memory, and of a working set of that many bytes, of which caches may
  /// hold a part; the medians of what was measured between the turns, because a shared machine's
  /// changes from one second to the next
  double memory_gb_s = 0, roof_gb_s = 0;
  /// decode: of the bandwidths that followed the same turn, the medians of the turns, of memory's
  /// above 100 where caches serve more; roof_pct of prefill: of what products allow
  double memory_pct = 0, roof_pct = 0;
  double vs_full = 0, vs_peer = 0;
  std::string peer;  ///< whom vs_peer compares with; empty: nobody was measured with this batch
  std::string note;  ///< e.g. the peer's setting that was faster
  /// The policy's own (Counters::policy) of the last turn, the mean of the sequences.
  std::vector<std::pair<std::string, double>> figures;
};

/// The first token of a prompt whose chunks are stored, or of full prefill. Medians, but for the
/// worst; what is loaded is that of the last measurement.
struct FusionTimes {
  std::string policy, fusion, from;  ///< from: "memory", "file cache" or "disk", and the codec
  uint32_t context = 0;
  double ttft_ms = 0, worst_ms = 0, vs_full = 0;
  uint64_t loaded_rows = 0, recomputed_rows = 0, loaded_bytes = 0;
  double mean_position = 0;  ///< of rows computed again, as part of the prompt
  double look_up_ms = 0, wait_ms = 0, place_ms = 0, select_ms = 0;
  double last_row_ms = 0;  ///< of the request that follows the fusion
};

struct BenchReport {
  MachineRoof machine;
  ModelInfo model;
  uint32_t threads = 0;
  std::vector<BenchRow> rows;
  KvTiers kv;                 ///< at the end
  AttentionReport attention;  ///< without rows: not measured
  std::vector<FusionTimes> fusion;
};

/// progress: stage "bench", unit "measurements". Errors: those of Engine::load and
/// Session::generate; kUnsupported when the peer is not installed or failed, with what it said.
Result<BenchReport> run_bench(const BenchPlan& plan, const ProgressFn& progress = {});

nlohmann::ordered_json tiers_json(const KvTiers& kv);
nlohmann::ordered_json paging_json(const KvPaging& paging);
/// The report as one JSON object.
nlohmann::ordered_json bench_json(const BenchReport& report);
/// Rows from first_row on as lines of a Markdown table, after its head when first_row is 0.
std::string bench_markdown(const BenchReport& report, size_t first_row = 0);

}  // namespace reprise
