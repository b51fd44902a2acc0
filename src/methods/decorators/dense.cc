#include "methods/decorators/dense.h"

#include <fmt/format.h>

namespace reprise {

DensePolicy::DensePolicy(const DenseOptions& options, const ModelConfig& config,
                         std::unique_ptr<Policy> wrapped)
    : PolicyDecorator(std::move(wrapped)),
      dense_(config.n_layer, false),
      name_(fmt::format("dense:{},{}", options.first, options.last)) {
  for (uint32_t layer = 0; layer < config.n_layer; ++layer) {
    dense_[layer] = layer < options.first || layer + options.last >= config.n_layer;
    if (dense_[layer]) leave_alone(layer);
  }
}

void DensePolicy::select(const QueryRows& rows, Selection& selection) {
  if (!dense_[rows.layer]) inner().select(rows, selection);
}

std::string DensePolicy::prefill_key() const {
  const std::string key = inner().prefill_key();
  return key.empty() || key == kDensePrefill ? key : name_ + "+" + key;
}

}  // namespace reprise
