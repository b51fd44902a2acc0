// The time to the first token of prompts whose chunks are stored, beside full prefill.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/measure.h"

namespace reprise {

/// Adds the model and its rows to the report, whose machine and threads are set.
Status measure_fusion(const BenchPlan& plan, BenchProgress& progress, BenchReport& report);

nlohmann::ordered_json fusion_json(const BenchReport& report);
/// A Markdown table; empty without rows.
std::string fusion_markdown(const BenchReport& report);

}  // namespace reprise
