// A trained network as a safetensors file: the tensors by the names and shapes of the published
// code, and in the metadata what it was trained for.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "methods/attention_predictor/network.h"
#include "model/config.h"
#include "reprise/error.h"

namespace reprise {

/// Text of a file that load_forecast_net() takes for this model. notes: further metadata.
std::string forecast_net_file(const ForecastNet& net, const ModelConfig& config,
                              const std::vector<std::pair<std::string, std::string>>& notes);

/// pool: of the scores that it is to forecast from, if that is settled. Errors: those of reading a
/// file and of parse_safetensors(), kMissingTensor, kBadShape, kBadValue for damaged metadata,
/// kUnsupported for a network of another model, block size or pool.
Result<ForecastNet> load_forecast_net(const std::string& path, const ModelConfig& config,
                                      std::optional<BlockPool> pool = {});

}  // namespace reprise
