// Blocks of past tokens with one representative key each, for InfLLM.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/policy.h"
#include "kernels/attention.h"

namespace reprise {

struct BlockMemoryOptions {
  int32_t init = 64;     // tokens before the first block
  int32_t block = 64;    // tokens
  int32_t local = 1024;  // recent keys of a row, its own included
  int32_t representatives = 4;
};

/// A block is represented, per KV head, by the mean of the keys that received most attention from
/// the queries that had them in their local window (Xiao et al. 2024, section 3.2). Every 16th
/// query votes, at fixed positions, so a representative does not depend on how rows arrive in
/// calls. Keys are position-free. All votes are kept, so that truncating is exact.
class BlockMemory {
 public:
  BlockMemory(const BlockMemoryOptions& options, const ModelConfig& config);

  /// Whole blocks that lie outside the local window of a row.
  int32_t blocks_at(int32_t position) const {
    return std::max(0, (position + 1 - options_.local - options_.init) / options_.block);
  }
  KeyRange keys(int32_t block) const {
    const int32_t begin = options_.init + block * options_.block;
    return {begin, begin + options_.block};
  }
  /// Takes in the rows' votes and makes the representatives of the blocks outside the local window
  /// of the first row. Calls follow each other in order of positions.
  void update(const QueryRows& rows);
  /// scores: [blocks_at(rows.first())] of the rows' mean query, rotated to the distance that all
  /// far keys have, summed over heads. Returns the bytes of representatives that were read.
  uint64_t score(const QueryRows& rows, std::vector<float>& scores) const;

  void truncate(int32_t length);
  uint64_t bytes() const;
  /// [blocks, n_kv_head, head_dim]
  std::span<const float> representatives(uint32_t layer) const { return layers_[layer].keys; }

 private:
  struct Layer {
    std::vector<float> votes;  // [samples, n_head, head_dim] queries before rotation
    std::vector<float> lse;    // [samples, n_head] over their local window
    int32_t blocks = 0;
    std::vector<float> keys;  // [blocks, n_kv_head, head_dim] representatives
  };
  struct Rotation {
    size_t pairs = 0;
    std::vector<float> cos_sin;  // [positions, pairs, 2] from 0 to beyond a block and its window
  };

  const Rotation& rotation(uint32_t layer) const;
  void rotate(uint32_t layer, int32_t position, float* q, size_t heads) const;
  /// Pages of keys [begin, end), rotated as if the first page stood at position 0.
  void list_rotated(const QueryRows& rows, size_t kv_head, KeyRange keys,
                    std::vector<kernels::PageSpan>& pages) const;
  void logits(const QueryRows& rows, std::span<const kernels::PageSpan> pages,
              std::span<const float> q, std::vector<float>& out) const;
  void take_vote(const QueryRows& rows, int32_t position, size_t kv_head);
  void represent(const QueryRows& rows, int32_t block, size_t kv_head);

  const ModelConfig* config_;
  BlockMemoryOptions options_;
  std::shared_ptr<const std::vector<Rotation>> rotations_;  // [3]: one per LayerRope
  std::vector<Layer> layers_;
};

}  // namespace reprise
