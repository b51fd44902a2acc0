// Reads blocks of stored chunks ahead of their use, layer by layer, for a device that computes
// while this machine's threads read. Where these compute, see chunk_loader.h.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
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

/// What is read: devices make values of codes.
inline constexpr BlockForm kReadForm = BlockForm::kCodes;
/// Blocks that are read begin at multiples of so many bytes.
inline constexpr size_t kBlockAlignment = 16;
constexpr size_t block_aligned(size_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}
/// Bytes from a chunk's block to the next one.
inline size_t block_stride(const StoredChunk& chunk) {
  return block_aligned(chunk.block_bytes(kReadForm));
}
/// As few parts as there can be of at most so many bytes, or of one load that is larger.
std::vector<BlockPart> block_parts(std::span<const ChunkLoad> loads, size_t most_bytes);

class BlockReader {
 public:
  /// Where the blocks of a load stay.
  struct Kept {
    std::byte* blocks = nullptr;  // [layers][block_stride()]; null: they go through the slots
    bool read = false;            // they are there already
  };
  struct Plan {
    std::span<const ChunkLoad> loads;
    std::vector<BlockPart> parts;          // of every layer
    uint32_t first_layer = 0, layers = 0;  // up to layers
    std::vector<std::byte*> slots;         // each with room for any part; used in turns
    ThreadPool* pool = nullptr;            // reads; nobody else's meanwhile
    std::vector<Kept> kept = {};           // [loads]; empty: all go through the slots
    double row_ms = 0;  // that computing a token would take; 0: reading may take any time
    /// Waits until the slot of a part that was released may be written, on any thread. nth: of all
    /// parts.
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
  /// A block that is read in every layer.
  struct Source {
    const StoredChunk* chunk;
    size_t in_slot;
    std::byte* kept;  // [layers][block_stride()], or null: it goes into the slot
  };
  struct Slot {
    size_t done = 0;  // blocks of its part
    double ms = 0;    // that reading them took, one after the other
  };
  struct Block {
    size_t nth;  // of all parts
    const Source* source;
  };
  size_t parts() const { return (plan_.layers - plan_.first_layer) * plan_.parts.size(); }
  const std::vector<Source>& sources_of(size_t nth) const {
    return sources_[nth % sources_.size()];
  }
  size_t readers() const { return static_cast<size_t>(std::max(1, plan_.pool->size() - 1)); }
  void list_sources();
  /// Chunks that stay nowhere; none where one is read to stay, which is read once.
  std::vector<const StoredChunk*> avoidable() const;
  void read_ahead();
  /// The next block in order when its slot is free; nothing at the end, or where it would wait and
  /// is not to.
  std::optional<Block> take(bool waits);
  void read(const Block& block);
  Status read_block(const Block& block);
  void count_parts();

  const Plan plan_;
  std::vector<std::vector<Source>> sources_;  // of the parts of a layer
  double side_by_side_ = 1;                   // blocks that are read, at most
  size_t taken_ = 0;                          // parts that next() gave
  bool told_ = false;  // next() returned status_; before, what it says is the readers'

  std::mutex mutex_;
  std::condition_variable changed_;
  LoadPace pace_;
  std::vector<Slot> slots_;
  double layer_ms_ = 0;  // of the parts of a layer that are read
  size_t next_part_ = 0, next_block_ = 0;
  size_t read_ = 0, released_ = 0;  // parts
  const StoredChunk* failed_ = nullptr;
  Status status_;  // of a part after those that were read
  bool stop_ = false;
  std::thread reader_;
};

}  // namespace reprise
