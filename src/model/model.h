// The model: packed weights and one forward pass over rows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/matmul.h"
#include "model/config.h"
#include "model/rope.h"
#include "reprise/error.h"
#include "reprise/progress.h"

namespace reprise {

struct ModelWeights;

/// One token to compute. The same shape serves prefill chunks, batched decoding and selective
/// recompute.
struct Row {
  uint32_t sequence = 0;  ///< caller's index; opaque to the model
  int32_t position = 0;
  int32_t token = 0;
};

/// What a forward pass asks of attention; implemented by the executor in attention/.
class AttentionOp {
 public:
  virtual ~AttentionOp() = default;
  /// Stores k, v of every row and writes the attention output of every row. Called once per layer
  /// in order. q [rows, n_head, head_dim], k and v [rows, n_kv_head, head_dim]: after bias and
  /// QK-norm, before rotation, rotary pairs adjacent; both may be modified. out [rows, n_head,
  /// head_dim].
  virtual Status attend(uint32_t layer, float* q, float* k, float* v, float* out) = 0;
  /// Asked after every attend(): which of the rows go on, ascending, or nothing when all do. None
  /// ends the pass; else rows whose logits are wanted are among them. Only of passes without decode
  /// rows.
  virtual std::optional<std::span<const uint32_t>> kept_rows() { return std::nullopt; }
};

struct ForwardBatch {
  std::span<const Row> rows;
  size_t decode_rows = 0;  ///< the first so many rows use decode numerics, the others prefill's
  std::span<const uint32_t> logit_rows;  ///< indices of rows whose logits are wanted
};

class Model {
 public:
  /// path: a GGUF file or a safetensors folder. context fixes longrope's choice; 0 = trained
  /// length. progress stage "load". expand: weights are kept in F32, so that every product is one
  /// of floats. Errors: those of the readers, kMissingTensor, kBadShape.
  static Result<std::unique_ptr<Model>> load(const std::string& path, ThreadPool& pool,
                                             uint32_t context = 0, const ProgressFn& progress = {},
                                             bool expand = false);
  ~Model();

  const ModelConfig& config() const { return config_; }
  const RopeTable& rope(uint32_t layer) const;
  /// For backends that keep their own copy; gone after release_weights().
  const ModelWeights& weights() const;
  void release_weights();
  /// Bytes of weights that one decode step reads.
  size_t weight_bytes() const;
  /// Type of most weight bytes, e.g. "Q4_1".
  const std::string& quantization() const { return quantization_; }
  /// Hash over configuration and tensor directory plus samples of the data; identity of stored KV.
  uint64_t fingerprint() const { return fingerprint_; }

  /// logits [logit_rows.size(), vocab]. Buffers grow to the largest batch and are kept.
  Status forward(const ForwardBatch& batch, AttentionOp& attention, float* logits);

 private:
  struct Weights;
  struct Buffers;
  Model();
  void finish(size_t decode_rows, std::span<const uint32_t> logit_rows, float* logits);

  ModelConfig config_;
  std::vector<RopeTable> ropes_;  // [3]: one per LayerRope
  size_t weight_bytes_ = 0;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Buffers> buffers_;
  ThreadPool* pool_ = nullptr;
  uint64_t fingerprint_ = 0;
  std::string quantization_;
};

}  // namespace reprise
