#include "eval/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace reprise::eval {
namespace {

using SeedOfHash = std::map<std::string, uint64_t>;

std::string without_seed(const RunRecord& run) {
  return fmt::format("{}|{}|{}|{}|{}", run.policy, run.model_sha256, run.quantization, run.kv_type,
                     run.scope);
}

std::string hashes_of(const SeedOfHash& samples) {
  std::string all;
  for (const auto& [hash, seed] : samples) all += (all.empty() ? "" : "+") + hash;
  return all;
}

void rename(RunFile& file) {
  std::map<std::string, const RunRecord*> runs;
  for (const RunRecord& run : file.runs) runs.emplace(run.id, &run);
  const auto rename_in = [&](auto& records) {
    for (auto& record : records) {
      const RunRecord& run = *runs.at(record.run);
      record.id += fmt::format("#{}", run.seed);
      record.run = without_seed(run);
    }
  };
  rename_in(file.samples);
  rename_in(file.steps);
  file.summaries.clear();  // are of one seed
  for (RunRecord& run : file.runs) run.id = without_seed(run);
}

}  // namespace

Status pool_seeds(std::span<RunFile> files) {
  std::map<std::string, std::map<std::string, SeedOfHash>> drawn;  // by pooled run, by task
  for (const RunFile& file : files) {
    for (const RunRecord& run : file.runs) {
      for (const auto& [task, hash] : run.data) {
        SeedOfHash& samples = drawn[without_seed(run)][task];
        const uint64_t seed = samples.emplace(hash, run.seed).first->second;
        if (seed != run.seed)
          return fail(ErrorCode::kInvalidArgument,
                      "{} has the same samples with seeds {} and {}; compare its runs without "
                      "--pool-seeds",
                      task, seed, run.seed);
        if (std::ranges::count(samples, run.seed, &SeedOfHash::value_type::second) > 1)
          return fail(ErrorCode::kInvalidArgument,
                      "{} ({}) has other samples of {} than another run with seed {}", run.policy,
                      file.path, task, run.seed);
      }
    }
  }
  for (RunFile& file : files) {
    for (RunRecord& run : file.runs)
      for (auto& [task, hash] : run.data) hash = hashes_of(drawn[without_seed(run)][task]);
    rename(file);
  }
  return {};
}

}  // namespace reprise::eval
