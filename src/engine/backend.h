// What computes forward passes: the model's weights and attention on one kind of device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "attention/pager.h"
#include "attention/step_cost.h"
#include "fusion/fused_pass.h"
#include "model/model.h"
#include "reprise/options.h"

namespace reprise {

/// What is wanted of a row once its pass is computed.
struct RowResult {
  uint32_t row = 0;
  /// Not null: the token chosen by these rules, instead of logits; only where Backend::samples().
  const SamplingOptions* sampling = nullptr;
  /// Every token that is known of the sequence, for the penalty; what passes chose since is added.
  std::span<const int32_t> history = {};
};

/// Rows to compute: decode steps first, each step's rows side by side.
struct ForwardPass {
  std::span<const Row> rows;  // token kChosenToken: what the step's last pass chose
  std::span<const SequenceStep> steps;
  std::span<const RowResult> results;  // in the order of rows
};
inline constexpr int32_t kChosenToken = -1;

/// Passes are computed in the order in which they start.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Takes what it needs of the pass; may return before it is computed.
  virtual Status start(const ForwardPass& pass) = 0;
  /// Waits for the oldest pass that was started and not finished yet.
  virtual Status finish() = 0;
  /// Of the pass that finish() waited for last, until the next finish() or, where passes cannot
  /// overlap, start(). logits [vocab], of results without sampling.
  virtual std::span<float> logits(size_t result) = 0;
  virtual int32_t token(size_t result) const = 0;
  virtual StepCost cost(size_t step) const = 0;

  /// Called before the first pass with a policy; kUnsupported when it does not run here.
  virtual Status prepare(Policy&) { return {}; }
  /// Whether tokens can be chosen where the logits are, and a pass started before the one before it
  /// is finished.
  virtual bool samples() const { return false; }
  /// Whether steps of a pass may be of one sequence, where its policy joins cells.
  virtual bool joins_cells() const { return false; }
  /// What fuses stored chunks; the backend outlives it. memory: bytes in which a GPU's host keeps
  /// chunks at hand. kUnsupported, kOutOfMemory.
  virtual Result<std::unique_ptr<FusionDevice>> fusion(uint64_t memory) = 0;
};

/// model and pool outlive the backend.
std::unique_ptr<Backend> cpu_backend(Model& model, ThreadPool& pool, Prefetch prefetch);

}  // namespace reprise
