// Keys and values of a sequence for tests of what is scored.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "kv/sequence_kv.h"
#include "model/config.h"
#include "model/rope.h"

namespace reprise {

struct FusionCase {
  ModelConfig config;
  std::unique_ptr<RopeTable> rope;
  std::optional<PagePool> pool;
  std::optional<SequenceKv> kv;
  std::vector<std::vector<float>> k, v;  // [tokens][n_kv_head * head_dim] before rotation
  ThreadPool threads{2};
  std::mt19937 random{5};
  std::normal_distribution<float> normal;

  FusionCase(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, size_t tokens, bool rotated) {
    config.n_head = heads;
    config.n_kv_head = kv_heads;
    config.head_dim = head_dim;
    RopeConfig angles;
    angles.dims = head_dim;
    rope = std::make_unique<RopeTable>(angles, 4096);
    const kernels::KvLayout layout = {kernels::KvType::kF32, kv_heads, head_dim};
    pool.emplace(std::move(*PagePool::create(layout, 2, 64 << 20)));
    kv.emplace(*pool);
    EXPECT_TRUE(kv->reserve(tokens));
    for (size_t at = 0; at < tokens; ++at) {
      k.push_back(values(kv_heads * head_dim));
      v.push_back(values(kv_heads * head_dim));
      std::vector<float> key = k.back();
      if (rotated) rotate(key, at);
      kernels::store_token(layout, kv->page(1, at / kPageTokens), at % kPageTokens, key.data(),
                           v.back().data());
    }
    kv->commit(tokens);
  }
  std::vector<float> values(size_t count) {
    std::vector<float> out(count);
    for (float& value : out) value = normal(random);
    return out;
  }
  void rotate(std::vector<float>& heads, size_t position) const {
    std::vector<float> angles(rope->pairs() * 2);
    rope->cos_sin(static_cast<int32_t>(position), angles.data());
    for (size_t i = 0; i < heads.size(); i += 2) {
      const size_t pair = i % config.head_dim / 2;
      const float c = angles[2 * pair], s = angles[2 * pair + 1], x = heads[i], y = heads[i + 1];
      heads[i] = x * c - y * s;
      heads[i + 1] = x * s + y * c;
    }
  }
};

}  // namespace reprise
