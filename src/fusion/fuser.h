// Chunk-level KV reuse: loads the KV of chunks at their place in a prompt and computes chosen rows
// again, which see the keys before them. See docs/fusion.md.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fusion/fused_pass.h"
#include "fusion/method.h"

namespace reprise {

/// What fusing a prompt gave.
struct Fused {
  FusionCost cost;
  std::vector<float> logits;                // of the last token
  std::vector<const StoredChunk*> damaged;  // they do not hold what was stored
};

class Fuser {
 public:
  /// device outlives the fuser.
  explicit Fuser(FusionDevice& device) : device_(device) {}

  /// Fills kv, which holds exact KV of the prompt's beginning. A chunk that cannot be read, or not
  /// as fast as FusedPrompt::row_ms asks, is computed. position_free: how kv's pages hold keys. An
  /// error, also kCancelled, leaves kv as it was.
  Result<Fused> fuse(FusedPrompt prompt, const FusionMethod& method, SequenceKv& kv,
                     bool position_free, const ProgressFn& progress = {});

 private:
  struct Plan {
    std::vector<int32_t> computed;    // question, missing chunks, between
    std::vector<int32_t> candidates;  // loaded rows that are not known to be exact
    std::vector<ChunkLoad> loads;
  };
  struct Selector {
    bool exact = false;  // needs keys and values of all rows
    RowScore score = RowScore::kHeads;
    float ratio = 0.0f;
    uint32_t layer = 1, first = 0, pool = 1, window = 0;
    float reads = 1.0f;
    uint32_t near = 0;

    bool reads_few() const { return reads < 1 && ratio < 1 && !exact; }
  };
  static std::optional<Selector> selector(const FusionMethod& method);

  Plan plan(const FusedPrompt& prompt, const FusionMethod& method, int32_t exact) const;
  static std::vector<int32_t> first_of_chunks(const Plan& plan, uint32_t count);
  Status choose(const FusedPrompt& prompt, const Plan& plan, const Selector& selector,
                FusedPass& pass, FewReads& chosen);
  /// Returns chunks that have to be computed instead; none: it is done.
  Result<std::vector<const StoredChunk*>> attempt(const FusedJob& job, const FusionMethod& method,
                                                  int32_t exact, Fused& fused);

  FusionDevice& device_;
};

}  // namespace reprise
