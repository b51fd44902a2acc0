// What tests of sessions and of answers that are given share.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "cuda/engine_testing.h"

namespace reprise::test {

inline Logits logits_in(Session& session, Request request, Answer* got = nullptr) {
  Logits rows;
  request.on_logits = [&](std::span<const float> logits) {
    rows.emplace_back(logits.begin(), logits.end());
  };
  auto answer = session.generate(request);
  EXPECT_TRUE(answer) << answer.error().message;
  if (answer && got != nullptr) *got = std::move(*answer);
  return rows;
}

inline std::vector<int32_t> then(std::span<const int32_t> tokens,
                                 const std::vector<int32_t>& more) {
  std::vector<int32_t> prompt(tokens.begin(), tokens.end());
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A figure that the policy counted.
inline double figure(const Answer& answer, std::string_view name) {
  for (const auto& [own, value] : answer.counters.policy) {
    if (own == name) return value;
  }
  ADD_FAILURE() << "no figure " << name;
  return -1.0;
}

inline Request forced_request(std::vector<int32_t> prompt, uint32_t tokens, uint32_t seed) {
  Request request = request_of(std::move(prompt), tokens);
  request.forced = tiny_prompt(tokens, seed);
  return request;
}

}  // namespace reprise::test
