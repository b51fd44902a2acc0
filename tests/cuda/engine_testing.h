// What tests of the whole engine on CUDA devices share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "cuda/device_testing.h"
#include "engine/answers.h"
#include "engine/tiny_model.h"

namespace reprise::test {

using Logits = std::vector<std::vector<float>>;  // [tokens, vocab]

inline EngineOptions cuda_options() {
  EngineOptions options = tiny_options();
  options.model = tiny_model({64});
  options.device = "cuda";
  return options;
}

inline Logits logits_of(Engine& engine, Request request, std::string_view policy = "full") {
  Logits rows;
  request.on_logits = [&](std::span<const float> logits) {
    rows.emplace_back(logits.begin(), logits.end());
  };
  answer_of(engine, request, policy);
  return rows;
}

/// Of requests that are answered as one batch, each by its own policy.
inline std::vector<Logits> logits_together(Engine& engine, std::span<const Request> requests,
                                           std::span<const std::string> policies) {
  std::vector<Logits> together(requests.size());
  std::vector<std::unique_ptr<Session>> sessions;
  for (size_t i = 0; i < requests.size(); ++i) {
    Request request = requests[i];
    request.on_logits = [&rows = together[i]](std::span<const float> logits) {
      rows.emplace_back(logits.begin(), logits.end());
    };
    sessions.push_back(*engine.open(policies[i]));
    EXPECT_TRUE(engine.submit(*sessions.back(), request, [](const Result<Answer>& answer) {
      EXPECT_TRUE(answer) << answer.error().message;
    }));
  }
  while (engine.step()) continue;
  return together;
}

inline std::vector<int32_t> best_tokens(const Logits& logits) {
  std::vector<int32_t> tokens;
  for (const auto& row : logits) {
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    tokens.push_back(static_cast<int32_t>(best));
  }
  return tokens;
}

/// |a - b| / |b| of rows whose mean is taken away, which softmax ignores.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double mean_a = 0, mean_b = 0, difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    mean_a += a[i] / static_cast<double>(a.size());
    mean_b += b[i] / static_cast<double>(b.size());
  }
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow((a[i] - mean_a) - (b[i] - mean_b), 2);
    norm += std::pow(b[i] - mean_b, 2);
  }
  return std::sqrt(difference / norm);
}

/// The standard deviation of a row.
inline double spread(const std::vector<float>& row) {
  double sum = 0, squares = 0;
  for (const float x : row) {
    sum += x;
    squares += double{x} * x;
  }
  const double n = static_cast<double>(row.size()), mean = sum / n;
  return std::sqrt(squares / n - mean * mean);
}

/// Tolerances are what rounding gives on average; single rows are not far from it.
inline void expect_near(const Logits& got, const Logits& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double squares = 0;
  for (size_t row = 0; row < got.size(); ++row) {
    const double own = distance(got[row], want[row]);
    EXPECT_LT(own, 3 * tolerance) << "row " << row;
    squares += own * own;
  }
  EXPECT_LT(std::sqrt(squares / static_cast<double>(got.size())), tolerance);
}

/// Of the rows; unlike a mean, not moved by the few where two scores were nearly equal and
/// something else was chosen.
inline double median_distance(const Logits& got, const Logits& want) {
  EXPECT_EQ(got.size(), want.size());
  std::vector<double> distances;
  for (size_t i = 0; i < got.size(); ++i) distances.push_back(distance(got[i], want[i]));
  std::sort(distances.begin(), distances.end());
  return distances[distances.size() / 2];
}

// A value rounded to bf16 is wrong by up to 2^-9 of itself, 2^-9 / sqrt(3) on average. Inputs of
// four products and the attention's operands are rounded in each of two branches of a layer, on
// either side; errors add up independently. (Where both sides round the same values to bf16, and
// those of decode to 16 bits, they are far nearer.)
inline double bf16_tolerance(uint32_t n_layer) {
  return 0x1p-9 / std::sqrt(3.0) * std::sqrt(2.0 * 4 * n_layer) * std::sqrt(2.0);
}

// Three bits of mantissa: up to 2^-4 of a value, in keys and values of every layer.
inline double fp8_tolerance(uint32_t n_layer) {
  return 0x1p-4 / std::sqrt(3.0) * std::sqrt(2.0 * n_layer);
}

class CudaEngine : public testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::cuda::has_device()) GTEST_SKIP() << "no CUDA device";
  }
};

}  // namespace reprise::test
