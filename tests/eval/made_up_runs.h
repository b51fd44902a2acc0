// Run records as an evaluation would leave them, with known effects planted.
#pragma once

#include <string>
#include <vector>

#include "eval/records.h"

namespace reprise::eval::test {

/// What a made-up policy costs and loses.
struct MadeUpPolicy {
  std::string spec;
  double share = 1;       // of the bytes that full attention reads
  double nll_loss = 0;    // added to every position's NLL beyond 1024 tokens, and to the needle's
  double needle_hit = 1;  // probability to find what full finds
};

struct MadeUp {
  uint64_t seed = 1;
  size_t documents = 4, positions = 2048;  // of ppl
  size_t trials = 4;                       // of each needle cell
  size_t subtask_samples = 12;             // of each longbench subtask, and twice that of the last
  std::string model_sha256 = "00c0ffee00c0ffee", scope = "decode";
  std::string data_hash = "d1";
};

/// Tasks ppl (with steps), needle and longbench under one policy. Samples depend on the seed alone,
/// so that policies without loss have the same scores as full.
RunFile made_up_run(const MadeUpPolicy& policy, const MadeUp& options = {});
/// full, streaming, random and two budgets of quest.
std::vector<MadeUpPolicy> made_up_policies();
/// The runs of several policies in one file.
RunFile made_up_file(const std::vector<MadeUpPolicy>& policies, const MadeUp& options = {});
/// The lines of a file.
std::string lines_of(const RunFile& file);

}  // namespace reprise::eval::test
