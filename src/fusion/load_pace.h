// Stored chunks that are loaded, and whether that is worth it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "store/chunk_store.h"

namespace reprise {

/// A chunk whose tokens [from, end) of the prompt are loaded.
struct ChunkLoad {
  const StoredChunk* chunk = nullptr;
  int32_t begin = 0, end = 0;  // where the chunk lies
  int32_t from = 0;            // before it the sequence has exact KV
  /// What is added to a token's position to get the one that its keys are rotated to.
  int32_t shift = 0;
};

/// Chunks that are not loaded, since computing their tokens is faster.
struct SlowLoad {
  std::vector<const StoredChunk*> chunks;
  double reading_ms = 0, computing_ms = 0;  // forecasts, for all of their tokens
};

/// Gives up loading where the layers that are left would take longer than computing the tokens.
class LoadPace {
 public:
  /// chunks: of loads, those that need not be read; none: all are read however long that takes.
  /// row_ms: what computing a token would take; 0: the same.
  LoadPace(std::span<const ChunkLoad> loads, std::vector<const StoredChunk*> chunks, double row_ms,
           size_t layers);
  /// A layer was read. What it took is spent either way. kCancelled where slow() says why.
  Status add_layer(double ms);
  /// Not null where loading was given up.
  const SlowLoad* slow() const { return slow_ ? &*slow_ : nullptr; }

 private:
  std::vector<const StoredChunk*> chunks_;
  double computing_ms_;  // infinite: not to be compared
  double layers_, done_ = 0, reading_ms_ = 0;
  std::optional<SlowLoad> slow_;
};

}  // namespace reprise
