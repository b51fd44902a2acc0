#include "model/shard.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/weights.h"

namespace reprise {
namespace {

constexpr size_t kTileRows = 16, kBlockCols = 32;
constexpr uint32_t kMaxShards = 8;

/// Why the columns of a matrix are not count parts of whole blocks; empty when they are.
std::string column_obstacle(std::string_view name, const kernels::PackedMatrix& matrix,
                            uint32_t count) {
  const auto& info = tensor_type_info(matrix.type());
  const size_t block = std::max<size_t>(info.block, kBlockCols);
  if (matrix.cols() % (count * block) == 0) return {};
  return fmt::format("its {} matrices ({}) have {} columns, in blocks of {}", name, info.name,
                     matrix.cols(), block);
}

/// What stands in the way; empty: nothing.
std::string obstacle(const ModelConfig& config, const ModelWeights* weights, uint32_t count) {
  if (config.n_kv_head % count != 0 || config.n_head % count != 0) {
    return fmt::format("it has {} query heads and {} KV heads", config.n_head, config.n_kv_head);
  }
  if (config.ffn % (count * kBlockCols) != 0) {
    return fmt::format("its FFN has {} columns, in blocks of {}", config.ffn, kBlockCols);
  }
  if (shard_range(config.vocab, {count - 1, count}).count == 0) {
    return fmt::format("its vocabulary has {} tokens", config.vocab);
  }
  for (size_t i = 0; weights != nullptr && i < weights->layers.size(); ++i) {
    const LayerWeights& layer = weights->layers[i];
    auto why = column_obstacle("attention output", layer.o.weight, count);
    if (why.empty()) why = column_obstacle("FFN down", layer.down.weight, count);
    if (!why.empty()) return why;
  }
  return {};
}

}  // namespace

ShardRange shard_range(size_t size, const Shard& shard) {
  const size_t tiles = (size + kTileRows - 1) / kTileRows;
  const size_t part = (tiles + shard.count - 1) / shard.count * kTileRows;
  const size_t first = std::min(size, shard.rank * part);
  return {first, std::min(part, size - first)};
}

ModelConfig shard_config(const ModelConfig& config, uint32_t count) {
  ModelConfig part = config;
  part.n_head /= count;
  part.n_kv_head /= count;
  part.ffn /= count;
  return part;
}

Status check_shards(const ModelConfig& config, const ModelWeights* weights, uint32_t count) {
  const std::string why = count == 1 ? "" : obstacle(config, weights, count);
  if (why.empty()) return {};
  std::vector<uint32_t> possible;
  for (uint32_t other = 2; other <= kMaxShards; ++other) {
    if (obstacle(config, weights, other).empty()) possible.push_back(other);
  }
  return fail(ErrorCode::kUnsupported, "--tp {} cannot share this model: {}; {}", count, why,
              possible.empty() ? "leave --tp out"
                               : fmt::format("--tp {} would do", fmt::join(possible, ", ")));
}

}  // namespace reprise
