// Requests under several policies, computed together so that weights are read once a step.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "reprise/engine.h"

namespace reprise::eval {

struct PolicyRequest {
  std::string policy;
  Request request;  // max_tokens >= 1
};

/// Answers every request on a session of its own, in order. Each starts when the one before it has
/// read its prompt, so that it finds in the prefix cache what their policies may share, and is
/// never ahead of it by a token. go_on is asked after every step; kCancelled when it says no. What
/// fails for one request alone is its own result.
Result<std::vector<Result<Answer>>> answer_together(Engine& engine,
                                                    std::vector<PolicyRequest> requests,
                                                    const std::function<bool()>& go_on);

}  // namespace reprise::eval
