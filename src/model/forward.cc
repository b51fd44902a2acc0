// One forward pass: embeddings, layers, logits.
#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "base/try.h"
#include "kernels/for_rows.h"
#include "kernels/ops.h"
#include "model/model_impl.h"

namespace reprise {
namespace {

using kernels::for_rows;
using kernels::Phase;
using kernels::Projection;

void grow(std::vector<float>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
}

/// A forward pass over rows of which the first decode_rows use decode numerics.
class Pass {
 public:
  Pass(const ModelConfig& config, const ModelWeights& weights, ThreadPool& pool,
       kernels::MatmulScratch& scratch, size_t rows, size_t decode_rows)
      : config_(config),
        weights_(weights),
        pool_(pool),
        scratch_(scratch),
        rows_(rows),
        decode_rows_(decode_rows) {}

  void embed(std::span<const Row> rows, float* x) const {
    const size_t hidden = config_.hidden;
    for_rows(pool_, rows_, hidden, [&](size_t row) {
      float* out = x + row * hidden;
      kernels::unpack_row(weights_.embedding.weight, static_cast<size_t>(rows[row].token), out);
      if (config_.embedding_scale == 1.0f) return;
      for (size_t i = 0; i < hidden; ++i) out[i] *= config_.embedding_scale;
    });
  }

  /// q, k, v of every row of the residual stream.
  void project_heads(const LayerWeights& layer, const float* x, float* q, float* k, float* v) {
    multiply({layer.q.onto(q), layer.k.onto(k), layer.v.onto(v)}, x, config_.hidden,
             norm(layer.attn_norm));
    if (!config_.qk_norm) return;
    norm_heads(q, config_.n_head, layer.q_norm);
    norm_heads(k, config_.n_kv_head, layer.k_norm);
  }

  /// x += post_norm(attn W^T) * residual_scale; h is a scratch of the size of x.
  void add_attention(const LayerWeights& layer, const float* attn, float* x, float* h) {
    multiply({output(layer.o, layer.attn_post_norm, x, h)}, attn, layer.o.weight.cols(), {});
    add_residual(layer.attn_post_norm, x, h);
  }

  /// x += post_norm(mlp(norm(x))) * residual_scale; h is a scratch of the size of x.
  void add_mlp(const LayerWeights& layer, float* x, float* h) {
    const Projection down = output(layer.down, layer.mlp_post_norm, x, h);
    each_phase([&](Phase phase, size_t first, size_t count) {
      const kernels::GatedMlp mlp{layer.gate.onto(nullptr), layer.up.onto(nullptr),
                                  from_row(down, first), config_.activation};
      const size_t hidden = config_.hidden;
      kernels::gated_mlp(mlp, {x + first * hidden, count, hidden, norm(layer.mlp_norm)}, phase,
                         pool_, scratch_);
    });
    add_residual(layer.mlp_post_norm, x, h);
  }

  /// logits [rows, vocab] of normalised rows.
  void head(const float* h, float* logits) {
    const Projection projection = weights_.head().onto(logits);
    kernels::matmul({&projection, 1}, {h, rows_, config_.hidden}, Phase::kDecode, pool_, scratch_);
    const size_t vocab = config_.vocab;
    if (config_.logit_scale == 1.0f && config_.logit_soft_cap == 0.0f) return;
    for_rows(pool_, rows_, vocab, [&](size_t row) {
      float* out = logits + row * vocab;
      for (size_t i = 0; i < vocab; ++i) out[i] *= config_.logit_scale;
      if (config_.logit_soft_cap != 0.0f) kernels::soft_cap(out, vocab, config_.logit_soft_cap);
    });
  }

 private:
  void norm_heads(float* heads, size_t count, const std::vector<float>& weight) const {
    const size_t n = config_.head_dim;
    for_rows(pool_, rows_, count * n, [&](size_t row) {
      for (size_t head = row * count; head < (row + 1) * count; ++head) {
        float* values = heads + head * n;
        kernels::rms_norm(values, weight.data(), config_.norm_eps, n, values);
      }
    });
  }

  kernels::RowNorm norm(const std::vector<float>& weight) const {
    return {weight.data(), config_.norm_eps};
  }

  bool adds_directly(const std::vector<float>& post_norm) const {
    return post_norm.empty() && config_.residual_scale == 1.0f;
  }
  /// Onto x where nothing comes between a layer's last product and the residual stream, else to h.
  Projection output(const Linear& linear, const std::vector<float>& post_norm, float* x,
                    float* h) const {
    return adds_directly(post_norm) ? linear.onto(x, true) : linear.onto(h);
  }
  /// Brings what output sent to h onto x.
  void add_residual(const std::vector<float>& post_norm, float* x, float* h) const {
    if (adds_directly(post_norm)) return;
    for_rows(pool_, rows_, config_.hidden, [&](size_t row) {
      const size_t n = config_.hidden;
      float* out = h + row * n;
      if (!post_norm.empty()) kernels::rms_norm(out, post_norm.data(), config_.norm_eps, n, out);
      kernels::add_scaled(x + row * n, out, config_.residual_scale, n);
    });
  }

  /// Calls body(phase, first row, rows) for the rows of either phase, if there are any.
  template <class Body>
  void each_phase(const Body& body) const {
    if (decode_rows_ > 0) body(Phase::kDecode, 0, decode_rows_);
    if (decode_rows_ < rows_) body(Phase::kPrefill, decode_rows_, rows_ - decode_rows_);
  }

  static Projection from_row(Projection projection, size_t row) {
    projection.out += row * projection.out_stride;
    return projection;
  }

  /// Every projection of the rows of input, [rows, width], in the numerics of each row's phase.
  template <size_t N>
  void multiply(const Projection (&projections)[N], const float* input, size_t width,
                kernels::RowNorm norm) {
    each_phase([&](Phase phase, size_t first, size_t count) {
      std::array<Projection, N> group;
      for (size_t i = 0; i < N; ++i) group[i] = from_row(projections[i], first);
      kernels::matmul(group, {input + first * width, count, width, norm}, phase, pool_, scratch_);
    });
  }

  const ModelConfig& config_;
  const ModelWeights& weights_;
  ThreadPool& pool_;
  kernels::MatmulScratch& scratch_;
  const size_t rows_, decode_rows_;
};

Status check_batch(const ForwardBatch& batch, uint32_t vocab) {
  if (batch.rows.empty() || batch.decode_rows > batch.rows.size()) {
    return fail(ErrorCode::kInvalidArgument, "a batch of {} rows cannot have {} decode rows",
                batch.rows.size(), batch.decode_rows);
  }
  for (const Row& row : batch.rows) {
    if (row.token >= 0 && static_cast<uint32_t>(row.token) < vocab && row.position >= 0) continue;
    return fail(ErrorCode::kInvalidArgument,
                "token {} at position {}: tokens are 0 to {}, positions are not negative",
                row.token, row.position, vocab - 1);
  }
  if (batch.logit_rows.size() > batch.rows.size()) {
    return fail(ErrorCode::kInvalidArgument, "logits of {} rows of {} are asked for",
                batch.logit_rows.size(), batch.rows.size());
  }
  for (const uint32_t row : batch.logit_rows) {
    if (row < batch.rows.size()) continue;
    return fail(ErrorCode::kInvalidArgument, "logits of row {} of {} are asked for", row,
                batch.rows.size());
  }
  return {};
}

/// Copies the chosen rows of n floats to the front.
void gather(std::vector<float>& buffer, std::span<const uint32_t> rows, size_t n,
            std::vector<float>& spare) {
  grow(spare, rows.size() * n);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(&buffer[rows[i] * n], n, &spare[i * n]);
  }
  std::copy_n(spare.data(), rows.size() * n, buffer.data());
}

}  // namespace

Status Model::forward(const ForwardBatch& batch, AttentionOp& attention, float* logits) {
  REPRISE_CHECK(check_batch(batch, config_.vocab));
  Buffers& b = *buffers_;
  const size_t rows = batch.rows.size(), hidden = config_.hidden;
  const size_t q_width = size_t{config_.n_head} * config_.head_dim;
  const size_t kv_width = size_t{config_.n_kv_head} * config_.head_dim;
  for (auto* buffer : {&b.x, &b.h}) grow(*buffer, rows * hidden);
  for (auto* buffer : {&b.q, &b.attn}) grow(*buffer, rows * q_width);
  for (auto* buffer : {&b.k, &b.v}) grow(*buffer, rows * kv_width);

  std::optional<Pass> pass;
  pass.emplace(config_, *weights_, *pool_, b.scratch, rows, batch.decode_rows);
  pass->embed(batch.rows, b.x.data());
  std::vector<uint32_t> logit_rows(batch.logit_rows.begin(), batch.logit_rows.end());
  for (uint32_t i = 0; i < config_.n_layer; ++i) {
    const LayerWeights& layer = weights_->layers[i];
    pass->project_heads(layer, b.x.data(), b.q.data(), b.k.data(), b.v.data());
    REPRISE_CHECK(attention.attend(i, b.q.data(), b.k.data(), b.v.data(), b.attn.data()));
    if (i + 1 == config_.n_layer) break;
    if (const auto kept = attention.kept_rows()) {
      if (kept->empty()) return {};
      gather(b.x, *kept, hidden, b.h);
      gather(b.attn, *kept, q_width, b.q);
      for (uint32_t& row : logit_rows) {
        row = static_cast<uint32_t>(std::ranges::lower_bound(*kept, row) - kept->begin());
      }
      pass.emplace(config_, *weights_, *pool_, b.scratch, kept->size(), 0);
    }
    pass->add_attention(layer, b.attn.data(), b.x.data(), b.h.data());
    pass->add_mlp(layer, b.x.data(), b.h.data());
  }
  if (!logit_rows.empty()) finish(batch.decode_rows, logit_rows, logits);
  return {};
}

/// The rest of the last layer, only for the rows whose logits are wanted, and their logits.
void Model::finish(size_t decode_rows, std::span<const uint32_t> logit_rows, float* logits) {
  Buffers& b = *buffers_;
  const size_t hidden = config_.hidden, count = logit_rows.size();
  b.slot.resize(count);
  b.kept.resize(count);
  std::iota(b.slot.begin(), b.slot.end(), 0u);
  const auto first_prefill = std::stable_partition(
      b.slot.begin(), b.slot.end(), [&](uint32_t slot) { return logit_rows[slot] < decode_rows; });
  for (size_t i = 0; i < count; ++i) b.kept[i] = logit_rows[b.slot[i]];
  gather(b.x, b.kept, hidden, b.h);
  gather(b.attn, b.kept, size_t{config_.n_head} * config_.head_dim, b.q);

  const LayerWeights& layer = weights_->layers.back();
  Pass pass(config_, *weights_, *pool_, b.scratch, count,
            static_cast<size_t>(first_prefill - b.slot.begin()));
  pass.add_attention(layer, b.attn.data(), b.x.data(), b.h.data());
  pass.add_mlp(layer, b.x.data(), b.h.data());
  for (size_t i = 0; i < count; ++i) {
    kernels::rms_norm(&b.x[i * hidden], weights_->final_norm.data(), config_.norm_eps, hidden,
                      &b.h[b.slot[i] * hidden]);
  }
  pass.head(b.h.data(), logits);
}

}  // namespace reprise
