// What an answer cost, as the numbers of a record.
#pragma once

#include "eval/records.h"
#include "reprise/request.h"

namespace reprise::eval {

/// Bytes per decoded token, the share of keys that were read, and figures of the policy's own that
/// are no times. An answer of one token, which the prompt's last row gives, has decoded none and
/// has no such bytes.
NamedNumbers counters_of(const Answer& answer);

/// Milliseconds, with times among the policy's figures ("build" of "build_ms"). alone: no other
/// request was computed meanwhile, so that the time of a token is the policy's own.
NamedNumbers timing_of(const Answer& answer, bool alone);

double mean(const std::vector<double>& values);

}  // namespace reprise::eval
