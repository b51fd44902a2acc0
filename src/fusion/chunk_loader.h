// Brings stored chunks into the pages of a sequence in this machine's memory, layer by layer.
#pragma once

#include <span>
#include <vector>

#include "attention/rotation.h"
#include "base/thread_pool.h"
#include "fusion/block_reader.h"
#include "fusion/fused_prompt.h"
#include "kv/sequence_kv.h"

namespace reprise {

/// Where layers are read to before they are placed, kept from one loader to the next: new memory
/// costs as much as reading into it.
struct LayerSlots {
  static constexpr size_t kCount = 4;  // layers read and not placed, and the one that is placed
  static constexpr size_t kMostBytes = 16 << 20;  // of a layer that is kept; larger ones go
  std::vector<std::byte> layers[kCount];
};

class ChunkLoader {
 public:
  /// kv has room for the whole prompt. rotate: pages hold rotated keys. row_ms: as
  /// BlockReader::Plan. slots outlive it, and are of no other one meanwhile.
  ChunkLoader(std::vector<ChunkLoad> loads, std::span<const RopeTable* const> ropes, SequenceKv& kv,
              bool rotate, double row_ms, LayerSlots& slots, ThreadPool& pool);

  /// Returns when all layers up to this one are in the pages. kCorrupt, kTruncated or
  /// kFileUnreadable when a chunk cannot be read, which failed() names then; kCancelled with
  /// slow().
  Status load_through(uint32_t layer);
  const StoredChunk* failed() const { return reader_.failed(); }
  const SlowLoad* slow() const { return reader_.slow(); }
  void add_cost(FusionCost& cost) const;

 private:
  // Positions of a load.
  struct Part {
    size_t load;
    int32_t begin, end;
  };
  struct PageRows {
    std::vector<float> k, v;  // [16, n_kv_head, head_dim]
  };

  BlockReader::Plan read_plan(double row_ms, LayerSlots& slots);
  void place(uint32_t layer, const std::byte* blocks);
  void place(uint32_t layer, const std::byte* blocks, const Part& part, PageRows& rows);

  const std::vector<ChunkLoad> loads_;
  SequenceKv& kv_;
  const bool rotate_;
  ThreadPool& pool_;
  RotationCache rotation_;
  std::vector<size_t> first_row_;   // [loads + 1] of each load among all loaded tokens
  std::vector<size_t> first_byte_;  // [loads] of each load's block
  size_t layer_bytes_ = 0;
  uint32_t placed_ = 0;  // layers
  double wait_ms_ = 0, place_ms_ = 0;
  uint64_t bytes_ = 0;
  std::vector<PageRows> page_rows_;  // [threads]
  LayerSlots large_;                 // of layers that are not kept
  BlockReader reader_;
};

}  // namespace reprise
