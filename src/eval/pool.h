// Runs of one policy over other samples each, as one run.
#pragma once

#include <span>

#include "eval/records.h"

namespace reprise::eval {

/// Makes runs that differ in nothing but their seeds, and so in their samples, shards of one run,
/// each of whose samples and steps is named after its seed. kInvalidArgument: two seeds drew the
/// same samples of a task (those of texts do not depend on it), which are no more for being read
/// twice.
Status pool_seeds(std::span<RunFile> files);

}  // namespace reprise::eval
