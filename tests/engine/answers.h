// Requests that run to their end, and what an engine says to them.
#pragma once

#include <gtest/gtest.h>

#include <string_view>
#include <utility>
#include <vector>

#include "reprise/engine.h"

namespace reprise::test {

inline Request request_of(std::vector<int32_t> prompt, uint32_t max_tokens = 24) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_end = true;
  return request;
}

inline Answer answer_of(Session& session, const Request& request) {
  auto answer = session.generate(request);
  EXPECT_TRUE(answer) << answer.error().message;
  return answer ? std::move(*answer) : Answer{};
}

inline Answer answer_of(Engine& engine, const Request& request, std::string_view policy = "full") {
  SCOPED_TRACE(policy);
  auto session = engine.open(policy);
  EXPECT_TRUE(session) << session.error().message;
  return session ? answer_of(**session, request) : Answer{};
}

}  // namespace reprise::test
