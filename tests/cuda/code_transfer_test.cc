// Indexes of a device to and from the form of the host.
#include <gtest/gtest.h>

#include <random>

#include "cuda/device_testing.h"
#include "methods/cuda/code_pool.h"
#include "methods/key_codes.h"

namespace reprise::test {
namespace {

using kernels::cuda::has_device;

constexpr uint32_t kDim = 64, kKvHeads = 2;
constexpr uint32_t kNone = IndexedLayers::kNone;

ModelConfig config_of(uint32_t layers) {
  ModelConfig config;
  config.n_layer = layers;
  config.n_head = 2 * kKvHeads;
  config.n_kv_head = kKvHeads;
  config.head_dim = kDim;
  return config;
}

/// Noise in layers 0 and 2 of 3; metrics: of the second of them.
KeyCodes noise(const ModelConfig& config, uint32_t bits, int32_t coded, bool metrics) {
  KeyCodes codes({kDim / 2, bits}, config);
  std::mt19937 random(bits);
  std::normal_distribution<float> normal;
  for (const uint32_t layer : {0u, 2u}) {
    std::vector<float> centroids(size_t{kKvHeads} * codes.clusters() * kDim);
    for (float& value : centroids) value = normal(random);
    PartMetrics own(layer == 2 && metrics ? kKvHeads * kDim / 2 : 0);
    for (auto& metric : own) {
      const float xy = 0.1f * normal(random);
      metric = {1.0f + xy, xy, xy, 2.0f};
    }
    const int32_t keys = layer == 0 ? coded : coded - 32;  // layers take turns
    codes.adopt(layer, 300, keys, std::move(own), centroids);
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      for (size_t i = 0; i * kernels::kCodeBlock < static_cast<size_t>(keys); ++i) {
        for (uint8_t& byte : codes.block(layer, head, i)) {
          byte = static_cast<uint8_t>(random() & (bits == 4 ? 0xff : 0x77));
        }
      }
    }
  }
  return codes;
}

std::string bytes_of(const KeyCodes& codes) {
  StateWriter out;
  codes.save(out);
  return out.take();
}

std::shared_ptr<CodePool> pool_for(uint64_t tokens) {
  auto pool = std::make_shared<CodePool>();
  EXPECT_TRUE(pool->reserve({2, kKvHeads, kDim}, tokens, 0));
  pool->begin_pass(nullptr);
  return pool;
}

TEST(CodeTransfer, IndexesComeBackAsTheyWere) {
  REPRISE_NEEDS_DEVICE();
  const ModelConfig config = config_of(3);
  for (const uint32_t bits : {4u, 3u}) {
    for (const int32_t coded : {48, 256, 688}) {
      const KeyCodes codes = noise(config, bits, coded, true);
      DeviceCodeIndex index(pool_for(1024), {0, kNone, 1});
      ASSERT_TRUE(index.create(nullptr, nullptr));
      const auto has_room = index.adopt(codes, nullptr);
      ASSERT_TRUE(has_room) << has_room.error().message;
      EXPECT_TRUE(*has_room);
      EXPECT_EQ(index.built_end(0), 300);
      EXPECT_EQ(index.built_end(1), 0);
      EXPECT_EQ(index.layers()[1].coded, coded - 32);
      KeyCodes back({kDim / 2, bits}, config);
      ASSERT_TRUE(index.fetch(back));
      EXPECT_EQ(back.trained_end(1), 0);
      EXPECT_EQ(back.metrics(2), codes.metrics(2));
      // Where there was none.
      EXPECT_EQ(back.metrics(0), PartMetrics(kKvHeads * kDim / 2, {1.0f, 0.0f, 0.0f, 1.0f}));
      DeviceCodeIndex other(pool_for(1024), {0, kNone, 1});
      ASSERT_TRUE(other.create(nullptr, nullptr));
      ASSERT_TRUE(other.adopt(back, nullptr));
      KeyCodes again({kDim / 2, bits}, config);
      ASSERT_TRUE(other.fetch(again));
      EXPECT_EQ(bytes_of(again), bytes_of(back));
      for (const uint32_t layer : {0u, 2u}) {
        for (size_t head = 0; head < kKvHeads; ++head) {
          for (int32_t key = 0; key < codes.coded(layer); ++key) {
            for (size_t part = 0; part < kDim / 2; ++part) {
              ASSERT_EQ(back.code(layer, head, part, static_cast<size_t>(key)),
                        codes.code(layer, head, part, static_cast<size_t>(key)));
            }
          }
        }
      }
    }
  }
}

TEST(CodeTransfer, WithoutRoomThereIsNoIndex) {
  REPRISE_NEEDS_DEVICE();
  const ModelConfig config = config_of(3);
  KeyCodes codes = noise(config, 4, 688, true);
  DeviceCodeIndex index(pool_for(512), {0, kNone, 1});
  ASSERT_TRUE(index.create(nullptr, nullptr));
  const auto has_room = index.adopt(codes, nullptr);
  ASSERT_TRUE(has_room) << has_room.error().message;
  EXPECT_FALSE(*has_room);
  EXPECT_EQ(index.built_end(0), 0);
  EXPECT_EQ(index.bytes(), 0u);
  codes.truncate(505);  // in the middle of a page
  ASSERT_TRUE(index.adopt(codes, nullptr).value_or(false));
  EXPECT_EQ(index.layers()[0].coded, 496);
}

}  // namespace
}  // namespace reprise::test
