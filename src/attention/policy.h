// An attention policy: decides, layer by layer, which keys the rows of one sequence read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "attention/selection.h"
#include "kernels/matmul.h"
#include "kv/sequence_kv.h"
#include "model/model.h"

namespace reprise {

/// The rows of one sequence in one forward pass. Their keys are stored before select() is called.
struct QueryRows {
  uint32_t layer = 0;
  kernels::Phase phase = kernels::Phase::kDecode;
  std::span<const Row> rows;  // ascending positions
  const float* q = nullptr;   // [rows, n_head, head_dim], before rotation
  const SequenceKv* kv = nullptr;
};

/// State and decisions for one sequence; freed, forked and accounted with it. Written once against
/// this interface; only kernels differ between backends.
class Policy {
 public:
  virtual ~Policy() = default;

  /// A policy in the same state for a copy of the sequence.
  virtual std::unique_ptr<Policy> fork() const = 0;
  /// Fills selection, which arrives reset. Not called for layers whose own sliding window bounds
  /// what is read.
  virtual void select(const QueryRows& rows, Selection& selection) = 0;
  /// After a forward pass whose tokens are committed: may evict pages that no later row will read.
  virtual void after_step(SequenceKv&) {}

  /// Whether a sequence can go on from its first length tokens with the pages it still has.
  virtual bool can_resume(const SequenceKv& kv, int32_t length) const;
  /// Whether KV stays bounded however long the sequence grows; lifts the context limit.
  virtual bool unbounded() const { return false; }
  /// Whether keys are stored without rotation and rotated when read.
  virtual bool position_free() const { return false; }
  /// Prompts prefilled under equal non-empty keys have equal KV and may share it.
  virtual std::string prefill_key() const { return {}; }
  /// Bytes of this policy's own state.
  virtual uint64_t state_bytes() const { return 0; }
};

/// Whether every page of a layer that holds one of the keys [begin, end) is present.
bool keys_present(const SequenceKv& kv, uint32_t layer, int32_t begin, int32_t end);

}  // namespace reprise
