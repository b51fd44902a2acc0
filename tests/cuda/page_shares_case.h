// What tests of pages' shares of attention read, and the shares that follow from it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "cuda/page_testing.h"
#include "kernels/cuda/page_shares.h"

namespace reprise::kernels::cuda {

inline constexpr float kScale = 0.11f;

struct SharesCase {
  KvType type;
  uint32_t n_head, n_kv_head, head_dim;
  bool largest = false;  // the best key of a page stands for it
};

// What a test reads: pages in some order, queries, and the probabilities that follow from them.
class Attention {
 public:
  Attention(const SharesCase& shape, uint32_t pages, uint32_t rows, float scale = kScale)
      : shape_(shape),
        scale_(scale),
        tiles_(shape.type, shape.head_dim, size_t{pages} * shape.n_kv_head * 2),
        q_(size_t{rows} * shape.n_head * shape.head_dim) {
    std::mt19937 random(5);
    tiles_.fill(random);
    std::normal_distribution<float> queries(0.0f, kScale / scale);
    for (uint16_t& value : q_) value = to_bf16(queries(random)).bits;
  }

  struct Logit {
    double value, error;
  };
  // Products are exact, of two numbers of 11 bits at most; each of head_dim additions may be cut
  // off at 2^-23 of the magnitude, and so may scaling; soft caps are not used.
  Logit logit(size_t row, uint32_t head, uint32_t page, uint32_t token) const {
    const uint32_t kv_head = head / (shape_.n_head / shape_.n_kv_head), dim = shape_.head_dim;
    const size_t tile = (size_t{page} * shape_.n_kv_head + kv_head) * 2;
    double sum = 0, magnitude = 0;
    for (uint32_t d = 0; d < dim; ++d) {
      const double term =
          to_float(Bf16{q_[(row * shape_.n_head + head) * dim + d]}) * tiles_.value(tile, token, d);
      sum += term;
      magnitude += std::abs(term);
    }
    return {scale_ * sum, scale_ * magnitude * (dim + 4) * 0x1p-23};
  }

  // Over keys [0, keys) of pages.
  float lse(size_t row, uint32_t head, const std::vector<uint32_t>& pages, uint32_t keys) const {
    double total = 0;
    for (uint32_t key = 0; key < keys; ++key) {
      total += std::exp(logit(row, head, pages[key / 16], key % 16).value);
    }
    return static_cast<float>(std::log(total));
  }

  struct Share {
    double value = 0, error = 0;
  };
  // Mean over the query heads of a KV head of what keys [0, end) of a page get.
  Share share(size_t row, uint32_t kv_head, uint32_t page, uint32_t end,
              const std::vector<float>& lse) const {
    const uint32_t group = shape_.n_head / shape_.n_kv_head;
    Share share;
    for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      Share best;
      for (uint32_t token = 0; token < end; ++token) {
        const Logit own = logit(row, head, page, token);
        const float total = lse[row * shape_.n_head + head];
        const double p = std::exp(own.value - total) / group;
        // Differences of logits and denominators, rounded; the hardware's exponential, 2^-22.
        const double rounding = (std::abs(own.value) + std::abs(total)) * 0x1p-22 + 0x1p-21;
        const Share one = {p, p * (own.error + rounding)};
        best.value = shape_.largest ? std::max(best.value, one.value) : best.value + one.value;
        best.error = shape_.largest ? std::max(best.error, one.error) : best.error + one.error;
      }
      share.value += best.value;
      share.error += best.error;
    }
    return {share.value, share.error + share.value * 16 * group * 0x1p-23};
  }

  const SharesCase& shape() const { return shape_; }
  const std::vector<uint8_t>& bytes() const { return tiles_.bytes(); }
  const std::vector<uint16_t>& q() const { return q_; }

 private:
  SharesCase shape_;
  double scale_;
  TestTiles tiles_;
  std::vector<uint16_t> q_;
};

inline const __nv_bfloat16* bf16(const DeviceArray<uint16_t>& array) {
  return reinterpret_cast<const __nv_bfloat16*>(array.get());
}

inline std::vector<SharesCase> shares_cases() {
  return {{KvType::kBF16, 8, 2, 128},       {KvType::kF16, 3, 1, 64},
          {KvType::kFP8, 16, 1, 96},        {KvType::kFP8, 4, 2, 64},
          {KvType::kBF16, 22, 2, 256},      {KvType::kF16, 5, 5, 96},
          {KvType::kBF16, 8, 2, 128, true}, {KvType::kFP8, 22, 2, 64, true}};
}

}  // namespace reprise::kernels::cuda
