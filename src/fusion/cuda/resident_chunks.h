// Chunks in page-locked memory, which devices copy from directly.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>

#include "kernels/cuda/device_buffer.h"
#include "store/chunk_store.h"

namespace reprise {

/// Memory for so many bytes of blocks, whose owners release it; first fit.
class BlockArena {
 public:
  explicit BlockArena(uint64_t bytes);
  static constexpr uint64_t kNone = UINT64_MAX;
  /// Where so many bytes lie from now on; kNone: nowhere.
  uint64_t take(uint64_t bytes);
  void give_back(uint64_t offset, uint64_t bytes);

 private:
  std::map<uint64_t, uint64_t> free_;  // bytes by offset; no two adjoin
};

/// Blocks of all layers of chunks, checked. What was used least recently makes room.
class ResidentChunks {
 public:
  struct Entry {
    std::byte* blocks = nullptr;  // [n_layer][block_stride()]
    bool complete = false;        // all of them were read
  };
  /// Locks so many bytes; 0: keeps nothing. kOutOfMemory.
  static Result<std::unique_ptr<ResidentChunks>> create(uint64_t bytes);

  /// The chunk's, or room for it that the caller fills; null: there is none. Stays until the last
  /// owner releases it, and is kept then if it is complete.
  std::shared_ptr<Entry> hold(const StoredChunk& chunk);

 private:
  struct Key {
    ChunkKey chunk;
    uint64_t form = 0;  // checksum of the header: other forms of a chunk have other values
    auto operator<=>(const Key&) const = default;
  };
  struct Kept {
    Key key;
    uint64_t offset = 0, bytes = 0;
    std::shared_ptr<Entry> entry;
  };

  explicit ResidentChunks(uint64_t bytes) : arena_(bytes) {}
  bool make_room();
  void drop(std::list<Kept>::iterator at);

  BlockArena arena_;
  kernels::cuda::PinnedBuffer<std::byte> memory_;
  std::list<Kept> kept_;  // the latest first
};

}  // namespace reprise
