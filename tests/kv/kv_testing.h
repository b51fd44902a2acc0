// Sequences whose every token carries a number that can be read back from its keys and values.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "kv/sequence_kv.h"

namespace reprise {

inline kernels::KvLayout small_layout(kernels::KvType type = kernels::KvType::kBF16) {
  return {type, 2, 32};
}

inline PagePool small_pool(uint32_t n_layer, uint64_t pages,
                           kernels::KvType type = kernels::KvType::kBF16) {
  auto pool =
      PagePool::create(small_layout(type), n_layer, pages * small_layout(type).page_bytes());
  EXPECT_TRUE(pool) << pool.error().message;
  return std::move(*pool);
}

// Key (sign = 1) or value (sign = -1) of a token in a layer. The 127 makes the q8_0 scale 1 and all
// other entries are small integers but 0: exact in every type. value < 10^8.
inline std::vector<float> token_vector(const kernels::KvLayout& layout, uint32_t layer,
                                       int32_t value, float sign) {
  std::vector<float> out(size_t{layout.n_kv_head} * layout.head_dim, 1.0f);
  for (uint32_t head = 0; head < layout.n_kv_head; ++head) {
    float* at = &out[size_t{head} * layout.head_dim];
    at[0] = 127.0f;
    at[1] = sign * static_cast<float>(layer + 1);
    at[2] = sign * static_cast<float>(head + 1);
    for (int digit = 0, rest = value; digit < 4; ++digit, rest /= 100) {
      at[3 + digit] = sign * static_cast<float>(rest % 100 + 1);
    }
  }
  return out;
}

inline void write_token(SequenceKv& sequence, int32_t position, int32_t value) {
  const auto& layout = sequence.pool().layout();
  const auto at = static_cast<size_t>(position);
  for (uint32_t layer = 0; layer < sequence.pool().layers(); ++layer) {
    const auto k = token_vector(layout, layer, value, 1.0f);
    const auto v = token_vector(layout, layer, value, -1.0f);
    kernels::store_token(layout, sequence.page(layer, at / kPageTokens), at % kPageTokens, k.data(),
                         v.data());
  }
}

inline bool holds_token(const SequenceKv& sequence, uint32_t layer, int32_t position,
                        int32_t value) {
  const auto& layout = sequence.pool().layout();
  const auto at = static_cast<size_t>(position);
  const auto want_k = token_vector(layout, layer, value, 1.0f);
  const auto want_v = token_vector(layout, layer, value, -1.0f);
  std::vector<float> k(want_k.size()), v(want_v.size());
  kernels::load_token(layout, sequence.page(layer, at / kPageTokens), at % kPageTokens, k.data(),
                      v.data());
  return k == want_k && v == want_v;
}

// Appends values; false when there is no room.
inline bool append(SequenceKv& sequence, const std::vector<int32_t>& values) {
  if (!sequence.reserve(values.size())) return false;
  for (size_t i = 0; i < values.size(); ++i) {
    write_token(sequence, sequence.length() + static_cast<int32_t>(i), values[i]);
  }
  sequence.commit(values.size());
  return true;
}

// Pages of each layer that hold tokens of sequence but are missing are skipped: those are evicted.
inline void expect_values(const SequenceKv& sequence, const std::vector<int32_t>& values) {
  ASSERT_EQ(static_cast<size_t>(sequence.length()), values.size());
  for (uint32_t layer = 0; layer < sequence.pool().layers(); ++layer) {
    for (int32_t i = 0; i < sequence.length(); ++i) {
      const auto at = static_cast<size_t>(i);
      if (sequence.pages(layer)[at / kPageTokens] == kNoPage) continue;
      ASSERT_TRUE(holds_token(sequence, layer, i, values[at]))
          << "layer " << layer << " token " << i;
    }
  }
}

inline std::vector<int32_t> random_values(std::mt19937& random, size_t count) {
  std::vector<int32_t> values(count);
  for (int32_t& value : values) value = static_cast<int32_t>(random() % 100'000'000);
  return values;
}

}  // namespace reprise
