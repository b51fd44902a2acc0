// Chunk-level KV reuse: loads the KV of chunks at their place in a prompt and computes chosen rows
// again, which see every key before them. See docs/fusion.md.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "attention/executor.h"
#include "fusion/chunk_loader.h"
#include "fusion/fused_prompt.h"
#include "fusion/method.h"
#include "model/model.h"
#include "reprise/progress.h"

namespace reprise {

class Fuser {
 public:
  /// block: rows of a forward pass. Everything must outlive the fuser.
  Fuser(Model& model, ThreadPool& pool, uint32_t block);

  /// KV of a chunk that is read after its context and nothing else: [n_layer][K, V], keys before
  /// rotation, as StoredChunk::read_layer gives them. kOutOfMemory, kInvalidArgument.
  Result<std::vector<std::byte>> read_chunk(const ChunkIdentity& identity,
                                            const ChunkTokens& tokens, PagePool& pool);

  /// Fills kv, which holds exact KV of the prompt's beginning, up to all but the last token of the
  /// prompt (whose row gives the first logits, so it is left to the caller). A chunk that cannot be
  /// read is computed. position_free: how kv's pages hold keys. An error, also kCancelled, leaves
  /// kv as it was.
  Result<FusionCost> fuse(FusedPrompt prompt, const FusionMethod& method, SequenceKv& kv,
                          bool position_free, const ProgressFn& progress = {});

 private:
  struct Plan {
    std::vector<int32_t> computed;    // question, missing chunks, between; without the last token
    std::vector<int32_t> candidates;  // loaded rows that are not known to be exact
    std::vector<ChunkLoad> loads;
  };
  struct Job;

  Plan plan(const FusedPrompt& prompt, const FusionMethod& method, int32_t exact) const;
  /// Returns the chunk that could not be read, or null.
  Result<const StoredChunk*> attempt(const FusedPrompt& prompt, const FusionMethod& method,
                                     Job& job, FusionCost& cost);
  Result<std::vector<int32_t>> choose(const FusedPrompt& prompt, const Plan& plan,
                                      const FusionMethod& method, Job& job);
  Status compute(const FusedPrompt& prompt, std::span<const int32_t> positions, Job& job);

  Model& model_;
  ThreadPool& pool_;
  const uint32_t block_;
  std::vector<const RopeTable*> ropes_;  // [n_layer]
  CpuExecutor executor_;
};

}  // namespace reprise
