// Makes the n-th call that changes a file fail, or kill the process: this program's own and those
// of the libraries that it loads.
#pragma once

namespace reprise {

enum class CallFault { kNone, kError, kShort, kKill };

/// Counts write, pwrite, fsync, fdatasync, ftruncate, truncate and unlink from now on, and lets
/// fault happen at the n-th (from 1). kShort: a write writes half of its bytes, then one fails.
void arm_calls(CallFault fault, int n);
/// Stops; returns how many were counted.
int disarm_calls();

}  // namespace reprise
