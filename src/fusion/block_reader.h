// Reads blocks of stored chunks ahead of their use, layer by layer, on a thread of its own.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "fusion/load_pace.h"

namespace reprise {

/// The blocks of loads [first, end) in one layer, read together and side by side.
struct BlockPart {
  size_t first = 0, end = 0;
  size_t bytes = 0;
};

/// As few parts as there can be of at most so many bytes, or of one load that is larger.
std::vector<BlockPart> block_parts(std::span<const ChunkLoad> loads, size_t most_bytes);

class BlockReader {
 public:
  /// Where the blocks of a load stay.
  struct Kept {
    std::byte* blocks = nullptr;  // [layers][block]; null: they go through the slots
    bool read = false;            // they are there already
  };
  struct Plan {
    std::span<const ChunkLoad> loads;
    std::vector<BlockPart> parts;          // of every layer
    uint32_t first_layer = 0, layers = 0;  // up to layers
    std::vector<std::byte*> slots;         // each with room for any part; used in turns
    ThreadPool* pool = nullptr;            // reads the blocks of a part together; null: one by one
    std::vector<Kept> kept = {};           // [loads]; empty: all go through the slots
    double row_ms = 0;  // that computing a token would take; 0: reading may take any time
    /// Waits until the slot of a part that was released may be written. nth: of all parts.
    std::function<Status(size_t nth)> await_unused = {};
  };
  explicit BlockReader(Plan plan);
  ~BlockReader();

  /// The slot of the next part, of all parts of all layers in order; waits until it is read.
  /// Errors: those of StoredChunk::read_layer, of a chunk that failed() names then; those of
  /// await_unused; kCancelled where slow() says why.
  Result<const std::byte*> next();
  /// The part that next() gave may be overwritten.
  void release();
  const StoredChunk* failed() const { return told_ ? failed_ : nullptr; }
  /// Not null where it gave up after a layer, since reading the others would take longer than
  /// computing the tokens.
  const SlowLoad* slow() const { return told_ ? pace_.slow() : nullptr; }

 private:
  void read_ahead();
  /// False when that failed, and status_ says why.
  bool read_one(size_t nth);
  Status read_part(size_t nth);
  size_t layer_of(size_t nth) const { return plan_.first_layer + nth / plan_.parts.size(); }
  struct Read {
    const StoredChunk* chunk;
    std::span<std::byte> to;
  };
  std::vector<Read> reads_of(size_t nth) const;
  /// Chunks that stay nowhere; none where one is read to stay, which is read once.
  std::vector<const StoredChunk*> avoidable() const;

  const Plan plan_;
  LoadPace pace_;
  double layer_ms_ = 0;  // of the parts of a layer that are read
  size_t taken_ = 0;
  bool told_ = false;  // next() returned status_; before, these are the reader's
  const StoredChunk* failed_ = nullptr;

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t read_ = 0, released_ = 0;  // parts
  Status status_;                   // of the part after those that were read
  bool stop_ = false;
  std::thread reader_;
};

}  // namespace reprise
