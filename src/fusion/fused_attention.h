// Attention of a forward pass over some rows of a fused prompt: loads what is stored just before
// each layer needs it, and lets the pass be cut to chosen rows.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "attention/executor.h"
#include "fusion/chunk_loader.h"
#include "fusion/few_keys.h"
#include "fusion/fused_prompt.h"

namespace reprise {

class FusedAttention : public AttentionOp {
 public:
  FusedAttention(const ModelConfig& config, CpuExecutor& executor, ChunkLoader& loader,
                 const FusedPrompt& prompt, SequenceKv& kv, Policy& policy)
      : config_(config),
        executor_(executor),
        loader_(loader),
        prompt_(prompt),
        kv_(kv),
        policy_(policy) {}

  /// From the next pass on, some rows read part of the keys before them.
  void set_few(const FewReads& few, PackedKeys& packed) {
    few_ = &few;
    packed_ = &packed;
  }
  /// The rows of the next pass: ascending positions.
  void begin(std::span<const int32_t> positions);
  std::span<const Row> rows() const { return rows_; }

  /// before, after: called in some layers with v or q of the rows, before their KV is stored and
  /// after. keep() may be called then. each: behind every layer's attention; an error ends the
  /// pass.
  struct Hooks {
    std::vector<uint32_t> layers;
    std::function<void(uint32_t layer, const float* v)> before;
    std::function<void(uint32_t layer, const float* q)> after;
    std::function<Status(uint32_t layer)> each;
  };
  void set_hooks(Hooks hooks) { hooks_ = std::move(hooks); }
  /// Only rows at these positions, some of the pass's, go on after this layer.
  void keep(std::span<const int32_t> positions);

  /// In the last layer only the last row's output is written: no other one's is read.
  Status attend(uint32_t layer, float* q, float* k, float* v, float* out) override;
  std::optional<std::span<const uint32_t>> kept_rows() override;

 private:
  void begin_rows(std::span<const Row> rows);
  Status attend_last_row(uint32_t layer, float* q, float* k, float* v, float* out);

  const ModelConfig& config_;
  CpuExecutor& executor_;
  ChunkLoader& loader_;
  const FusedPrompt& prompt_;
  SequenceKv& kv_;
  Policy& policy_;
  const FewReads* few_ = nullptr;
  PackedKeys* packed_ = nullptr;  // with few_
  std::vector<ReadsFew> few_policies_;
  std::vector<Row> rows_;
  std::vector<SequenceStep> steps_;
  std::vector<uint32_t> kept_;
  std::optional<std::vector<int32_t>> keep_;  // positions, until kept_rows() was asked
  Hooks hooks_;
};

}  // namespace reprise
