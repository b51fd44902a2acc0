// Brings stored chunks into the pages of a sequence in this machine's memory, layer by layer.
#pragma once

#include <array>
#include <mutex>
#include <span>
#include <vector>

#include "attention/rotation.h"
#include "base/thread_pool.h"
#include "fusion/fused_prompt.h"
#include "fusion/load_pace.h"
#include "kv/sequence_kv.h"

namespace reprise {

/// What is kept from one loader to the next: new memory costs as much as writing to it.
struct LoadRoom {
  /// ropes: [n_layer], outlive it.
  explicit LoadRoom(std::span<const RopeTable* const> ropes) : rotation(ropes) {}

  static constexpr size_t kMostBytes = 16 << 20;  // that are kept
  std::vector<std::byte> bytes;                   // where blocks are read to before they are placed
  RotationCache rotation;                         // of all positions so far
};

/// Threads read and check blocks, and place what they have just read while their caches hold it;
/// the system reads ahead meanwhile.
class ChunkLoader {
 public:
  /// kv has room for the whole prompt. rotate: pages hold rotated keys. row_ms: as LoadPace. room
  /// outlives it, and is of no other one meanwhile.
  ChunkLoader(std::vector<ChunkLoad> loads, SequenceKv& kv, bool rotate, double row_ms,
              LoadRoom& room, ThreadPool& pool);

  /// Returns when all layers up to this one are in the pages. kCorrupt, kTruncated or
  /// kFileUnreadable when a chunk cannot be read, which failed() names then; kCancelled with
  /// slow().
  Status load_through(uint32_t layer);
  const StoredChunk* failed() const { return failed_; }
  const SlowLoad* slow() const { return pace_.slow(); }
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

  void make_room(LoadRoom& room);
  void prepare_rotation();
  std::span<std::byte> room_of(size_t load, int thread) const;
  Status load(uint32_t layer);
  /// Reads a load's block and, if at_once_, places it.
  Status read(uint32_t layer, size_t load, int thread);
  void place(uint32_t layer, const Part& part, int thread);

  const std::vector<ChunkLoad> loads_;
  SequenceKv& kv_;
  const bool rotate_;
  ThreadPool& pool_;
  RotationCache& rotation_;
  LoadPace pace_;
  bool at_once_ = false;          // blocks are small, and there are enough for the threads
  std::vector<Part> parts_;       // placed one by one where blocks are not placed at once
  std::vector<std::byte> large_;  // the room where it is not kept
  std::byte* room_ = nullptr;
  std::vector<size_t> room_at_;  // of each load's block; of each thread's if at_once_
  uint32_t placed_ = 0;          // layers
  const StoredChunk* failed_ = nullptr;
  double wait_ms_ = 0, place_ms_ = 0;
  uint64_t bytes_ = 0;
  std::vector<double> read_ms_;              // [threads] of a layer
  std::vector<PageRows> page_rows_;          // [threads]
  std::array<std::mutex, 16> shared_pages_;  // by page, of those that are placed in pieces
};

}  // namespace reprise
