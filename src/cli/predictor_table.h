// Predictors of attention side by side: the share of it that each one finds.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/console.h"
#include "methods/attention_predictor/trainer.h"

namespace reprise::cli {

/// Budgets that are compared: one of so many tokens of a passage.
inline constexpr uint32_t kBudgetShares[] = {16, 8, 4};
BlockBudget share_budget(uint32_t length, uint32_t share);

/// Passages that no network was trained on.
struct TestSet {
  std::string name;
  std::vector<Recording> recordings;
};

struct NamedNet {
  std::string name;
  std::shared_ptr<const ForecastNet> net;
};

/// Share of attention that a predictor finds.
struct Comparison {
  std::string name;
  std::vector<double> recovery;  // [sets, kBudgetShares]
};

/// What predictors are compared by. Every one sees the same rows and has the same budgets.
struct ComparisonCase {
  std::span<const NamedNet> nets;
  std::span<const TestSet> sets;
  const TrainingOptions* training = nullptr;
  uint32_t length = 0;  // of a passage
  size_t heads = 0;     // that have histories
};

/// Of the networks, averages, the last row alone and, last, the best blocks.
std::vector<Comparison> compare_predictors(const ComparisonCase& how, ThreadPool& pool);

/// file: where the first network lies.
Status print_comparison(std::span<const Comparison> table, const ComparisonCase& how,
                        const std::string& file, Console& console);

}  // namespace reprise::cli
