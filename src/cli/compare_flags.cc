#include "cli/compare_flags.h"

#include <cstdlib>

#include "base/try.h"
#include "eval/pool.h"

namespace reprise::cli {
namespace {

// The 0.02 that was typed, which the nearest float is not.
double as_typed(float value) { return std::strtod(format_option(value).c_str(), nullptr); }

}  // namespace

void CompareFlags::declare(FlagSet& flags) {
  flags.add_positional_list({"runs", "run files that eval wrote", "file"}, paths_);
  flags.add({"ref", "policy that the others are compared with"}, reference_);
  flags.add({"equal", "also compare settings that cost the same", "", 0, 0, "none|bytes"}, equal_);
  flags.add({"tol", "relative difference up to which bytes are equal", "", 0, 1}, tolerance_);
  flags.add({"margin", "loss that would not matter, of a score from 0 to 1 or in nats", "", 1e-9},
            margin_);
  flags.add({"floor", "difference that two runs of the same policy may have"}, floor_);
  flags.add({"all-metrics", "compare every score, not the headline and nll only"}, all_metrics_);
  flags.add({"allow-different", "compare runs of different models, settings, scopes or data"},
            allow_different_);
  flags.add({"pool-seeds", "runs that differ in their seeds alone are one run with more samples"},
            pool_seeds_);
}

eval::CompareOptions CompareFlags::options() const {
  eval::CompareOptions options;
  options.join = {reference_, allow_different_};
  options.margin = as_typed(margin_);
  options.floor = as_typed(floor_);
  options.all_metrics = all_metrics_;
  options.equal_bytes = equal_ == "bytes";
  options.tolerance = as_typed(tolerance_);
  return options;
}

Result<eval::Settings> CompareFlags::read() {
  if (paths_.empty())
    return fail(ErrorCode::kInvalidArgument, "which runs? give files that `reprise eval` wrote");
  files_.clear();
  for (const std::string& path : paths_)
    REPRISE_CHECK(eval::read_run_file(path, files_.emplace_back()));
  if (pool_seeds_) REPRISE_CHECK(eval::pool_seeds(files_));
  return eval::join_runs(files_, options().join);
}

}  // namespace reprise::cli
