// Brings stored chunks into the pages of a sequence, layer by layer: a thread reads and checks a
// few layers ahead of what is computed.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "attention/rotation.h"
#include "base/thread_pool.h"
#include "fusion/fused_prompt.h"
#include "kv/sequence_kv.h"

namespace reprise {

/// A chunk whose tokens [from, end) of the prompt are loaded.
struct ChunkLoad {
  const StoredChunk* chunk = nullptr;
  int32_t begin = 0, end = 0;  // where the chunk lies
  int32_t from = 0;            // before it the sequence has exact KV
  /// What is added to a token's position to get the one that its keys are rotated to.
  int32_t shift = 0;
};

class ChunkLoader {
 public:
  /// kv has room for the whole prompt. rotate: pages hold rotated keys.
  ChunkLoader(std::vector<ChunkLoad> loads, std::span<const RopeTable* const> ropes, SequenceKv& kv,
              bool rotate, ThreadPool& pool);
  ~ChunkLoader();

  /// Returns when all layers up to this one are in the pages. kCorrupt, kTruncated or
  /// kFileUnreadable when a chunk cannot be read, which failed() names then.
  Status load_through(uint32_t layer);
  const StoredChunk* failed() const { return failed_; }
  void add_cost(FusionCost& cost) const;

 private:
  static constexpr size_t kAhead = 3;  // layers read and not placed
  struct Layer {
    std::vector<std::vector<std::byte>> blocks;  // [loads]
    Status status;
  };

  void read_ahead();
  void place(uint32_t layer, const Layer& read);

  const std::vector<ChunkLoad> loads_;
  SequenceKv& kv_;
  const bool rotate_;
  ThreadPool& pool_;
  RotationCache rotation_;
  std::vector<size_t> first_row_;  // [loads + 1] of each load among all loaded tokens
  uint32_t placed_ = 0;            // layers
  const StoredChunk* failed_ = nullptr;
  double wait_ms_ = 0, place_ms_ = 0;
  uint64_t bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Layer> read_;                     // in order, from layer placed_
  std::vector<std::vector<std::byte>> spare_;  // blocks that can be used again
  bool stop_ = false;
  std::thread reader_;
};

}  // namespace reprise
