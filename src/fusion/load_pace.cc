#include "fusion/load_pace.h"

#include <algorithm>
#include <limits>

namespace reprise {

LoadPace::LoadPace(std::span<const ChunkLoad> loads, std::vector<const StoredChunk*> chunks,
                   double row_ms, size_t layers)
    : chunks_(std::move(chunks)), computing_ms_(0), layers_(static_cast<double>(layers)) {
  for (const ChunkLoad& load : loads) {
    if (std::ranges::count(chunks_, load.chunk) > 0)
      computing_ms_ += row_ms * (load.end - load.from);
  }
  if (computing_ms_ <= 0) computing_ms_ = std::numeric_limits<double>::infinity();
}

Status LoadPace::add_layer(double ms) {
  reading_ms_ += ms;
  ++done_;
  const double all_ms = reading_ms_ / done_ * layers_;
  if (all_ms - reading_ms_ <= computing_ms_) return {};
  slow_ = SlowLoad{chunks_, all_ms, computing_ms_};
  return fail(ErrorCode::kCancelled, "reading chunks takes longer than computing them");
}

}  // namespace reprise
