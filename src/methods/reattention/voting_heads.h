// Query heads whose picks count: those that find things, where they are known.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "reprise/error.h"

namespace reprise {

class VotingHeads {
 public:
  /// "all", or LAYER:HEAD separated by '/'. Errors: kInvalidArgument where one is not the model's.
  static Result<VotingHeads> parse(std::string_view text, const ModelConfig& config);

  bool all() const { return marks_.empty(); }
  /// How many there are in a layer.
  size_t count(uint32_t layer) const;
  bool has(uint32_t layer, size_t head) const { return all() || of(layer)[head] != 0; }
  /// [n_head] 1 where the head votes; not where all do.
  std::span<const uint8_t> of(uint32_t layer) const {
    return std::span(marks_).subspan(layer * heads_, heads_);
  }
  std::span<const uint8_t> marks() const { return marks_; }

 private:
  size_t heads_ = 0;
  std::vector<uint8_t> marks_;  // [n_layer, n_head], or empty
};

}  // namespace reprise
