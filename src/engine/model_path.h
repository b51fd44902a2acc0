// Where a model named on the command line lies.
#pragma once

#include <string>

#include "reprise/error.h"

namespace reprise {

/// The path itself, or for "smollm2" the cached default model
/// (${XDG_CACHE_HOME:-~/.cache}/reprise/SmolLM2-135M-Instruct.Q4_1.gguf). kFileNotFound says how to
/// get it.
Result<std::string> resolve_model(const std::string& model);

}  // namespace reprise
