// One sample answered under several policies, and scored.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "eval/records.h"
#include "eval/run/scope.h"
#include "eval/sample.h"
#include "reprise/engine.h"

namespace reprise::eval {

/// Records in the order of the policies, without run and task. The answer is greedy and ends at the
/// model's end, a stop string or max_tokens; where there is a gold answer, score "nll" is the mean
/// over its tokens when they are decoded one by one after the same prompt, and "greedy" is 1 where
/// each of them is the likeliest one, 0 elsewhere. What cannot be answered is a failed record.
/// alone: requests do not run together. Errors: kCancelled when go_on says no.
Result<std::vector<SampleRecord>> answer_sample(Engine& engine, const Sample& sample,
                                                std::span<const std::string> policies,
                                                const Scope& scope, bool alone,
                                                const std::function<bool()>& go_on);

/// A record of what could not be done.
SampleRecord failed_record(std::string id, const Error& error);

}  // namespace reprise::eval
