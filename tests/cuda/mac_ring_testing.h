// Rings of MAC-Attention on the device, and what their rounding leaves of numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "kernels/cuda/mac.h"

namespace reprise::kernels::cuda {

/// Numbers as q8_0: codes, and a scale for every 32.
struct MacCodes {
  std::vector<int8_t> codes;
  std::vector<float> scales;

  explicit MacCodes(std::span<const float> values) : codes(values.size()) {
    for (size_t first = 0; first < values.size(); first += 32) {
      float largest = 0.0f;
      for (size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(values[first + i]));
      const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
      scales.push_back(largest / 127.0f);
      for (size_t i = first; i < first + 32; ++i) {
        codes[i] = static_cast<int8_t>(std::lrint(values[i] * inverse));
      }
    }
  }
  MacCodes(std::vector<int8_t> kept, std::vector<float> by)
      : codes(std::move(kept)), scales(std::move(by)) {}

  std::vector<float> values() const {
    std::vector<float> values(codes.size());
    for (size_t i = 0; i < codes.size(); ++i) {
      values[i] = static_cast<float>(codes[i]) * scales[i / 32];
    }
    return values;
  }
};

/// What a ring keeps of a head's query.
inline void round_query(bool coded, std::span<float> q) {
  if (coded) {
    const std::vector<float> kept = MacCodes(q).values();
    std::copy(kept.begin(), kept.end(), q.begin());
  } else {
    for (float& x : q) x = to_float(to_bf16(x));
  }
}

/// Some rings of one layer, or the layers of some.
class MacTestRings {
 public:
  /// values: of a ring, [n_kv_head, window, group, head_dim]
  MacTestRings(bool coded, size_t values, size_t rings)
      : coded_(coded),
        values_(values),
        q_(values * rings * (coded ? 1 : 2)),
        out_(values * rings * (coded ? 1 : 4)),
        q_scales_(values * rings / 32),
        out_scales_(values * rings / 32) {}

  /// first: the ring that is number 0.
  void describe(MacRings& rings, size_t first = 0) const {
    rings.q = q_.get() + first * values_ * (coded_ ? 1 : 2);
    rings.out = out_.get() + first * values_ * (coded_ ? 1 : 4);
    if (!coded_) return;
    rings.q_scales = q_scales_.get() + first * values_ / 32;
    rings.out_scales = out_scales_.get() + first * values_ / 32;
  }
  /// q, out: as they are kept.
  void set(size_t ring, const std::vector<float>& q, const std::vector<float>& out) {
    const size_t first = ring * values_;
    if (coded_) {
      set_codes(MacCodes(q), q_.get() + first, q_scales_.get() + first / 32);
      return set_codes(MacCodes(out), out_.get() + first, out_scales_.get() + first / 32);
    }
    std::vector<uint16_t> bits;
    for (const float x : q) bits.push_back(to_bf16(x).bits);
    copy(q_.get() + first * 2, bits);
    copy(out_.get() + first * 4, out);
  }
  /// Of all rings.
  std::vector<float> results() const {
    if (coded_) return codes(out_, out_scales_).values();
    const std::vector<uint8_t> bytes = out_.host();
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  /// Of rings of codes.
  std::vector<float> queries() const { return codes(q_, q_scales_).values(); }

 private:
  template <class T>
  static void copy(void* to, const std::vector<T>& from) {
    EXPECT_EQ(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  static void set_codes(const MacCodes& from, uint8_t* codes, float* scales) {
    copy(codes, from.codes);
    copy(scales, from.scales);
  }
  static MacCodes codes(const DeviceArray<uint8_t>& of, const DeviceArray<float>& scales) {
    const std::vector<uint8_t> bytes = of.host();
    return {std::vector<int8_t>(bytes.begin(), bytes.end()), scales.host()};
  }

  bool coded_;
  size_t values_;
  DeviceArray<uint8_t> q_, out_;
  DeviceArray<float> q_scales_, out_scales_;
};

}  // namespace reprise::kernels::cuda
