#include "methods/cuda/indexed_layers.h"

#include <span>

#include "base/try.h"

namespace reprise {

Status IndexedLayers::find(const ModelConfig& config, const DevicePolicy& policy) {
  layers.clear();
  places.assign(config.n_layer, kNone);
  for (uint32_t layer = 0; layer < config.n_layer; ++layer) {
    if (config.window[layer] > 0 || policy.leaves_alone(layer)) continue;
    places[layer] = count();
    layers.push_back(layer);
  }
  return kernels::cuda::upload(std::span<const uint32_t>(layers), model_layers, "indexed layers");
}

}  // namespace reprise
