// Configurations of well-known models, for benchmarks without their weights.
#pragma once

#include <span>
#include <string_view>

namespace reprise {

struct PublicConfig {
  std::string_view name;
  std::string_view json;  ///< the keys of the model's config.json that are read
};

/// The first one is made up: a tiny Llama for tests.
std::span<const PublicConfig> public_configs();

}  // namespace reprise
