// Range-checked numbers of a model's configuration, whatever file they come from.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "model/config.h"

namespace reprise {

/// What a number in a file may be.
struct NumberRange {
  double min, max;
};

// Far beyond any model of these families; they bound what a hostile file can make the engine ask
// for before tensor shapes are checked.
inline constexpr NumberRange kLayers{1, 1024}, kHidden{1, 1 << 17}, kHeads{1, 1024};
inline constexpr NumberRange kHeadDim{2, 256}, kFfn{1, 1 << 20}, kVocab{1, 1 << 22};
inline constexpr NumberRange kContext{1, 1 << 30}, kWindow{0, 1 << 30};
inline constexpr NumberRange kEps{0, 1}, kTheta{2, 1e12}, kScale{1e-6, 1e6}, kCap{0, 1e6};

class KeyReader {
 public:
  explicit KeyReader(std::string file) : file_(std::move(file)) {}
  virtual ~KeyReader() = default;

  /// The number of a key, empty when the key is absent or null; kBadType.
  virtual Result<std::optional<double>> find(std::string_view key) const = 0;

  /// A whole number; kMissingKey, kBadType, kBadValue name the key.
  Result<uint32_t> count(std::string_view key, NumberRange range) const;
  Result<uint32_t> count_or(std::string_view key, NumberRange range, uint32_t fallback) const;
  Result<float> number(std::string_view key, NumberRange range) const;
  Result<float> number_or(std::string_view key, NumberRange range, float fallback) const;

  const std::string& file() const { return file_; }
  /// kBadValue at a key of this file, with what is wrong about it.
  tl::unexpected<Error> bad(std::string_view key, std::string_view what) const;
  tl::unexpected<Error> missing(std::string_view key) const;
  virtual std::string full_name(std::string_view key) const { return std::string(key); }

 private:
  std::string file_;
};

/// The keys of a format, for messages about how values fit together.
struct ConfigKeys {
  std::string_view n_head, n_kv_head, head_dim, rope_dims, rope_factors;
};
/// kBadValue when values that are fine one by one do not fit together.
Status check_config(const ModelConfig& config, const ConfigKeys& keys, const KeyReader& reader);

/// YaRN's temperature on q.k, on the cosines and sines: Peng et al. 2023, eq. 22.
float yarn_mscale(float factor, float mscale = 1.0f);
/// LongRoPE's scale of cosines and sines: Ding et al. 2024; 1 unless the context was extended.
float longrope_attention_factor(float factor, uint32_t original_context);

}  // namespace reprise
