// Brings pages of sequences that lie on disk in part to memory for the layer being computed, and
// those that later layers are expected to read ahead of them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "attention/plan.h"
#include "base/thread_pool.h"
#include "model/config.h"

namespace reprise {

/// When pages are brought that a decode row has not asked for yet: never; for the next layer, by
/// the query of this one, and kept while there is room or given up once that layer is computed
/// (InfiniGen, Lee et al. 2024, section 4.3); for the next token, by what this one read or what the
/// policy predicts. While prompt rows are computed in a layer, what they read of it comes in the
/// next.
enum class Prefetch : uint8_t { kNone, kLayer, kLayerOnce, kToken };
/// name: a choice of --kv-prefetch.
inline Prefetch prefetch_mode(std::string_view name) {
  if (name == "none") return Prefetch::kNone;
  if (name == "layer") return Prefetch::kLayer;
  return name == "layer-once" ? Prefetch::kLayerOnce : Prefetch::kToken;
}
inline bool brings_next_layer(Prefetch mode) {
  return mode == Prefetch::kLayer || mode == Prefetch::kLayerOnce;
}

class Pager {
 public:
  Pager(const ModelConfig& config, ThreadPool& pool, Prefetch mode)
      : config_(config), pool_(pool), mode_(mode) {}

  void begin(std::span<const Row> rows, std::span<const SequenceStep> steps);
  /// Whether a sequence of the pass is paged out; there is nothing to call otherwise.
  bool active() const { return active_; }

  // In a layer: what is held stays in memory until finish(). Errors: those of PagePool::fetch.

  /// The pages that rows are stored in.
  Status hold_written(uint32_t layer);
  /// What the step's policy reads itself for the rows: see Policy::reads_from().
  Status hold_keys(const QueryRows& rows, size_t step);
  /// What jobs from first_job on read, which are those of a step.
  Status hold_read(uint32_t layer, size_t step, const AttentionPlan& plan, size_t first_job);
  /// Once all that a step reads is held. rows: as select() got them.
  void expect_next_layer(const QueryRows& rows, size_t step);
  void finish(uint32_t layer);

 private:
  struct Layer {
    std::vector<uint32_t> blocks;  // that the next token is expected to read
    uint64_t used = 0;             // stamp of when the layer was computed last
    bool partly = false;           // some found no room yet
  };
  using Layers = std::vector<Layer>;  // [n_layer]

  Layers& layers_of(const SequenceKv& kv);
  Status hold(uint32_t layer, size_t step);  // blocks_
  /// Gives up what is needed last, once layer `last` is computed: of layers up to that many back.
  void make_room(SequenceKv& kv, uint32_t last, uint32_t layers, uint64_t pages, uint64_t since);
  void expect_next_token(uint32_t layer, size_t step);
  void bring_ahead(SequenceKv& kv, uint32_t last, uint32_t distance, uint64_t since);
  /// Adds to blocks_ those that keys lie in.
  void add_blocks(KeyRange keys);
  /// Adds to blocks_ those that the policy reads itself for rows: see Policy::reads_from().
  void add_own_blocks(const QueryRows& rows, const Policy& policy);
  /// Makes blocks_ those that rows to come read if attention reads what it read in the step's last
  /// layer.
  void list_like_last(const QueryRows& rows, size_t step);
  /// Makes blocks_ those that a row at rows.first() reads of a selection.
  void list_blocks(const QueryRows& rows, const Selection& selection);
  /// Makes pages_ those of blocks.
  void list_pages(const SequenceKv& kv, uint32_t layer, std::span<const uint32_t> blocks);

  const ModelConfig& config_;
  ThreadPool& pool_;
  const Prefetch mode_;
  bool active_ = false;
  std::span<const Row> rows_;
  std::span<const SequenceStep> steps_;
  uint32_t epoch_ = 0;          // of the layer being computed
  std::vector<size_t> owners_;  // [steps] the first of its sequence, which holds for all of them
  std::vector<std::vector<uint32_t>> marks_;  // [steps][blocks] epoch in which it was held last
  std::vector<std::vector<uint32_t>> held_;   // [steps] blocks
  // Of those, what attention reads.
  std::vector<std::vector<uint32_t>> read_marks_;  // as marks_
  std::vector<std::vector<uint32_t>> read_;        // [steps] blocks
  std::vector<uint32_t> blocks_;
  std::vector<PageId> pages_;
  Selection selection_;
  std::unordered_map<const SequenceKv*, Layers> layers_;  // of the pass's sequences
};

}  // namespace reprise
