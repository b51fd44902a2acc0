// Models of well-known shapes with random weights: what they say is noise, how fast is not.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor_type.h"
#include "model/config.h"

namespace reprise {

inline constexpr std::string_view kRandomPrefix = "random:";

/// Parts of "random:NAME" or "random:NAME:TYPE".
struct RandomSpec {
  ModelConfig config;
  TensorType type = TensorType::kBF16;  ///< of matrices; vectors are F32
};
/// kInvalidArgument lists the names or types that there are.
Result<RandomSpec> parse_random_spec(std::string_view model);

/// The tensors that a folder of this configuration holds, as yet without bytes. Not for families
/// with fused weights or norms after attention.
std::vector<TensorView> random_tensors(const RandomSpec& spec);

class RandomModel {
 public:
  /// The same bytes for the same model, everywhere. Errors: those of parse_random_spec.
  static Result<RandomModel> make(std::string_view model);

  const ModelConfig& config() const { return config_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const TensorView* tensor(std::string_view name) const;

 private:
  ModelConfig config_;
  std::unique_ptr<std::byte[]> block_;  // of which all matrices are parts
  std::vector<float> ones_;             // of all vectors
  std::vector<TensorView> tensors_;
};

}  // namespace reprise
