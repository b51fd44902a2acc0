#include "model/key_reader.h"

#include <cmath>

#include "base/try.h"

namespace reprise {
namespace {

Status check_range(const KeyReader& reader, std::string_view key, double value, NumberRange range) {
  if (value >= range.min && value <= range.max) return {};  // NaN fails both
  return reader.bad(key,
                    fmt::format("is {}, which is outside {} to {}", value, range.min, range.max));
}

Status check_rope(const RopeConfig& rope, const ModelConfig& config, const ConfigKeys& keys,
                  const KeyReader& reader) {
  if (rope.dims == 0 || rope.dims % 2 != 0 || rope.dims > config.head_dim) {
    return reader.bad(keys.rope_dims, fmt::format("gives {} rotated dimensions of a head of {}",
                                                  rope.dims, config.head_dim));
  }
  for (const auto* factors : {&rope.short_factors, &rope.long_factors}) {
    if (factors->empty()) continue;
    if (factors->size() != rope.dims / 2) {
      return reader.bad(keys.rope_factors,
                        fmt::format("has {} values, needs {}", factors->size(), rope.dims / 2));
    }
    for (const float factor : *factors) {
      REPRISE_CHECK(check_range(reader, keys.rope_factors, factor, kScale));
    }
  }
  return {};
}

}  // namespace

Result<uint32_t> KeyReader::count(std::string_view key, NumberRange range) const {
  REPRISE_TRY(const std::optional<double> value, find(key));
  if (!value) return missing(key);
  REPRISE_CHECK(check_range(*this, key, *value, range));
  if (*value != std::floor(*value))
    return bad(key, fmt::format("is {}, not a whole number", *value));
  return static_cast<uint32_t>(*value);
}

Result<uint32_t> KeyReader::count_or(std::string_view key, NumberRange range,
                                     uint32_t fallback) const {
  REPRISE_TRY(const std::optional<double> value, find(key));
  if (!value) return fallback;
  return count(key, range);
}

Result<float> KeyReader::number(std::string_view key, NumberRange range) const {
  REPRISE_TRY(const std::optional<double> value, find(key));
  if (!value) return missing(key);
  REPRISE_CHECK(check_range(*this, key, *value, range));
  return static_cast<float>(*value);
}

Result<float> KeyReader::number_or(std::string_view key, NumberRange range, float fallback) const {
  REPRISE_TRY(const std::optional<double> value, find(key));
  if (!value) return fallback;
  return number(key, range);
}

tl::unexpected<Error> KeyReader::bad(std::string_view key, std::string_view what) const {
  return fail(ErrorCode::kBadValue, "{}: {} {}", file_, full_name(key), what);
}

tl::unexpected<Error> KeyReader::missing(std::string_view key) const {
  return fail(ErrorCode::kMissingKey, "{}: {} is missing", file_, full_name(key));
}

Status check_config(const ModelConfig& config, const ConfigKeys& keys, const KeyReader& reader) {
  if (config.n_head % config.n_kv_head != 0) {
    return reader.bad(keys.n_kv_head, fmt::format("is {}, which does not divide {} heads",
                                                  config.n_kv_head, config.n_head));
  }
  if (config.head_dim < kHeadDim.min || config.head_dim > kHeadDim.max ||
      config.head_dim % 2 != 0) {
    return reader.bad(keys.head_dim,
                      fmt::format("gives heads of {}; even sizes to {} are supported",
                                  config.head_dim, kHeadDim.max));
  }
  REPRISE_CHECK(check_rope(config.rope, config, keys, reader));
  for (const LayerRope use : config.layer_rope) {
    if (use != LayerRope::kLocal) continue;
    REPRISE_CHECK(check_rope(config.local_rope, config, keys, reader));
    if (config.local_rope.dims != config.rope.dims) {
      return reader.bad(keys.rope_dims, "differs between layers, which is not supported");
    }
    break;
  }
  return {};
}

float yarn_mscale(float factor, float mscale) {
  return factor <= 1.0f ? 1.0f : 0.1f * mscale * std::log(factor) + 1.0f;
}

float longrope_attention_factor(float factor, uint32_t original_context) {
  if (factor <= 1.0f || original_context < 2) return 1.0f;
  return std::sqrt(1.0f + std::log(factor) / std::log(static_cast<float>(original_context)));
}

}  // namespace reprise
