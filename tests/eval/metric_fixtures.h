// Goldens of the metrics, made by tests/oracle/make_metric_goldens.py.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace reprise::eval {

constexpr double kGoldenTolerance = 1e-6;

/// Cases of one metric: arrays that start with the prediction.
inline const nlohmann::json& metric_goldens(std::string_view metric) {
  static const nlohmann::json kAll = [] {
    std::ifstream file(std::string(REPRISE_FIXTURES) + "/eval/metrics.json");
    EXPECT_TRUE(file);
    return nlohmann::json::parse(file);
  }();
  const auto& cases = kAll.at(std::string(metric));
  EXPECT_GE(cases.size(), 30u);
  return cases;
}

}  // namespace reprise::eval
