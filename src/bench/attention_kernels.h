// A layer's attention kernels, apart from any model.
#pragma once

#include <cstdint>
#include <string>

#include "reprise/error.h"

namespace reprise {

struct AttentionShape {
  uint32_t n_head = 0, n_kv_head = 0, head_dim = 0;
  std::string kv_type = "bf16";
};

/// A decode step of batch sequences that hold context tokens each, or reading one prompt.
struct AttentionCase {
  bool decode = true;
  uint32_t context = 0, batch = 1;

  bool operator==(const AttentionCase&) const = default;
};

class AttentionKernels {
 public:
  virtual ~AttentionKernels() = default;

  /// Makes queries and KV for a case; those of the one before are freed. Errors: kOutOfMemory;
  /// kDeviceUnavailable for a shape that the kernels do not have.
  virtual Status prepare(const AttentionCase& shape) = 0;
  /// Of the prepared case: median of some runs, in each of which so many copies of KV are read in
  /// turn that no cache serves them.
  virtual Result<double> microseconds() = 0;
  /// K and V of a token in one layer.
  virtual double kv_bytes_per_token() const = 0;
};

}  // namespace reprise
