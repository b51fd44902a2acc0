// Attention sinks and a recent window (StreamingLLM, Xiao et al. 2024).
#pragma once

#include "attention/policy.h"

namespace reprise {

/// Two parts, unless rows see no other keys: keys [0, sink), and of each row the last window ones
/// behind them.
void read_first_and_recent(const QueryRows& rows, int32_t sink, int32_t window,
                           Selection& selection);

}  // namespace reprise
