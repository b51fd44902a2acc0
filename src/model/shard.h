// How devices share one model (tensor parallelism): heads, FFN columns and vocabulary in equal
// parts, everything else on each of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/config.h"
#include "reprise/error.h"

namespace reprise {

struct ModelWeights;

/// One of count devices.
struct Shard {
  uint32_t rank = 0, count = 1;
};

/// Parts are whole tiles of rows, whole blocks of 32 columns.
struct ShardRange {
  size_t first = 0, count = 0;
};
/// Rows or columns of a shard: equal parts, but for the vocabulary's last.
ShardRange shard_range(size_t size, const Shard& shard);

/// What each of count devices computes: its share of the heads and of the FFN.
ModelConfig shard_config(const ModelConfig& config, uint32_t count);

/// kUnsupported when the model cannot be cut into so many parts: why, and how many would do.
/// weights null: what is known without them.
Status check_shards(const ModelConfig& config, const ModelWeights* weights, uint32_t count);

}  // namespace reprise
