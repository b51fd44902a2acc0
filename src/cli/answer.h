// An answer's cost, for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "reprise/engine.h"

namespace reprise::cli {

nlohmann::ordered_json answer_json(const Answer& answer, const ModelInfo& model);
/// "read 7,012 tokens in 3.1 s (2,262/s); wrote 120 in 1.2 s (98/s); ...".
std::string answer_summary(const Answer& answer, const ModelInfo& model);
/// What the reader of an answer should know about its end; empty when it ended by itself.
std::string finish_remark(const Answer& answer, const ModelInfo& model);

}  // namespace reprise::cli
