// Random attention problems and what they should give, in double precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/isa.h"

namespace reprise::kernels {

struct CaseOptions {
  KvType type = KvType::kBF16;
  Phase phase = Phase::kDecode;
  size_t head_dim = 64;
  size_t rows = 3;
  size_t keys = 300;         // the last row sees all of them
  size_t heads_per_row = 1;  // rows at one position; positions grow by one
  int32_t window = 0;        // keys a row sees, 0 = all before it
  size_t rope_pairs = 0;     // > 0: keys are stored without rotation
  float soft_cap = 0.0f;
  float amplitude = 1.0f;  // of q and k
  bool holes = false;      // leave pages out, and slots of pages
  float bias = 0.0f;       // > 0: half the pages have biases of this size, some of them -inf
  uint32_t seed = 1;
};

struct AttendResult {
  std::vector<float> out;  // [rows, head_dim]
  std::vector<float> lse;  // [rows]
};

/// q is exact in bf16 and the scale is ln 2 / 8, so that only documented roundings remain. Slots
/// that nobody reads hold large finite numbers.
struct AttentionCase {
  explicit AttentionCase(const CaseOptions& wanted);

  /// Arguments for rows [first, first + count); `result` is sized and pointed at.
  AttendArgs args(size_t first, size_t count, AttendResult& result) const;
  AttendResult attend_rows(size_t first, size_t count) const;
  AttendResult attend_all() const { return attend_rows(0, options.rows); }

  CaseOptions options;
  KvLayout layout;
  float scale;
  std::vector<float> q;  // [rows, head_dim]
  std::vector<int32_t> row_begin, row_end;
  std::vector<std::byte> memory;
  std::vector<float> cos_sin;   // [pages][16][pairs][2]
  std::vector<float> biases;    // [pages][16]
  std::vector<PageSpan> pages;  // of KV head 1
};

/// q.k of one row and one slot, and the same sum of absolute values.
struct Dot {
  double sum = 0, magnitude = 0;
};
/// Over `pairs` of dims; all of them if empty.
Dot key_dot(const AttentionCase& problem, size_t row, const PageSpan& page, size_t slot,
            std::span<const uint16_t> pairs = {});

struct Expected {
  std::vector<double> out, out_error;  // [rows, head_dim] and bounds of the error
  std::vector<double> lse, lse_error;  // [rows]
};

/// The bound follows the roundings: u = 2^-8 for what is rounded to bf16, 2^-24 a float operation,
/// 5e-6 for exp2, 2^-66 of the largest for weights that underflow. A logit off by at most d moves a
/// weight by a factor within e^(2 d).
Expected expected(const AttentionCase& problem);
/// Adds gtest failures (a few at most) where result leaves the bounds.
void expect_close(const AttentionCase& problem, const Expected& want, const AttendResult& got);

std::string describe(const CaseOptions& options);

}  // namespace reprise::kernels
