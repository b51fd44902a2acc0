#include "model/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/thread_pool.h"
#include "model/random_model.h"
#include "model/weights.h"

namespace reprise {
namespace {

using testing::HasSubstr;

ModelConfig config_of(const std::string& model) { return parse_random_spec(model)->config; }

TEST(Shard, RangesCoverEverythingOnce) {
  for (const size_t size : {32, 192, 259, 4096, 14336, 128256, 151936}) {
    for (const uint32_t count : {1, 2, 3, 4, 8}) {
      size_t next = 0;
      for (uint32_t rank = 0; rank < count; ++rank) {
        const ShardRange range = shard_range(size, {rank, count});
        EXPECT_EQ(range.first, next) << size << " in " << count;
        EXPECT_TRUE(range.count == 0 || range.first % 16 == 0) << range.first;
        next += range.count;
      }
      EXPECT_EQ(next, size) << count;
    }
  }
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const ShardRange range = shard_range(14336, {rank, 4});
    EXPECT_EQ(range.first, rank * 3584u);
    EXPECT_EQ(range.count, 3584u);
  }
}

TEST(Shard, ConfigKeepsGroupsAndTheResidualStream) {
  const ModelConfig whole = config_of("random:llama-3.1-8b"), part = shard_config(whole, 4);
  EXPECT_EQ(part.n_head, 8u);
  EXPECT_EQ(part.n_kv_head, 2u);
  EXPECT_EQ(part.ffn, 3584u);
  EXPECT_EQ(part.hidden, whole.hidden);
  EXPECT_EQ(part.vocab, whole.vocab);
  EXPECT_EQ(part.head_dim, whole.head_dim);
}

TEST(Shard, HeadsMustDivide) {
  const ModelConfig config = config_of("random:llama-3.1-8b");
  for (const uint32_t count : {1, 2, 4, 8}) EXPECT_TRUE(check_shards(config, nullptr, count));
  const Status status = check_shards(config, nullptr, 3);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(status.error().message, HasSubstr("--tp 3"));
  EXPECT_THAT(status.error().message, HasSubstr("32 query heads and 8 KV heads"));
  EXPECT_THAT(status.error().message, HasSubstr("--tp 2, 4, 8 would do"));
}

TEST(Shard, FfnAndVocabularyMustDivide) {
  ModelConfig config = config_of("random:llama-3.1-8b");
  config.ffn = 4096 + 64;
  Status status = check_shards(config, nullptr, 4);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("4160 columns"));
  EXPECT_THAT(status.error().message, HasSubstr("--tp 2 would do"));
  config = config_of("random:llama-3.1-8b");
  config.vocab = 60;
  status = check_shards(config, nullptr, 8);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("60 tokens"));
}

kernels::PackedMatrix zeros(TensorType type, uint64_t cols, ThreadPool& pool) {
  const auto& info = tensor_type_info(type);
  const std::vector<std::byte> bytes(16 * cols / info.block * info.block_bytes);
  const TensorView view{"zeros", type, {16, cols}, bytes};
  auto packed = kernels::PackedMatrix::pack({&view, 1}, {}, pool);
  EXPECT_TRUE(packed) << packed.error().message;
  return std::move(*packed);
}

TEST(Shard, BlocksOfWeightsStayWhole) {
  ThreadPool pool(2);
  const ModelConfig config = config_of("random:tiny");  // 4 heads of 64, an FFN of 512
  ModelWeights weights;
  LayerWeights& layer = weights.layers.emplace_back();
  layer.o.weight = zeros(TensorType::kQ8_0, 256, pool);
  layer.down.weight = zeros(TensorType::kQ4_K, 512, pool);
  EXPECT_TRUE(check_shards(config, &weights, 2)) << "two blocks of 256";
  layer.o.weight = zeros(TensorType::kQ6_K, 256, pool);
  const Status status = check_shards(config, &weights, 2);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message,
              HasSubstr("attention output matrices (Q6_K) have 256 columns, in blocks of 256"));
  EXPECT_THAT(status.error().message, HasSubstr("leave --tp out"));
}

}  // namespace
}  // namespace reprise
