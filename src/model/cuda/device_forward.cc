// One forward pass on a device: embeddings, layers, logits.
#include <algorithm>
#include <functional>

#include "base/try.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/matvec.h"
#include "model/cuda/device_buffers.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

/// Rows that are computed in the same way, as one of the buffers' slices.
struct RowRange {
  uint32_t rows = 0;
  float* x = nullptr;                        // [rows, hidden]
  const float* attn = nullptr;               // [rows, n_head * head_dim] of narrow rows
  const __nv_bfloat16* wide_attn = nullptr;  // the same of wide rows
  bool narrow() const { return attn != nullptr; }
};

struct Product {
  const DeviceMatrix* weight;
  const float* bias;
  void* out;
};

}  // namespace

Status DeviceModel::Buffers::reserve(const ModelConfig& config, const Shard& shard,
                                     const Limits& limits) {
  constexpr std::string_view kWhat = "activations";
  const size_t q_width = size_t{config.n_head} * config.head_dim;
  const size_t kv_width = size_t{config.n_kv_head} * config.head_dim;
  const size_t max_rows = limits.rows, max_results = limits.results;
  if (shard.count > 1) {
    const size_t part = shard_range(config.vocab, {0, shard.count}).count;
    REPRISE_CHECK(logits.reserve(shard.count * max_results * part, kWhat));
  }
  for (auto* buffer : {&x, &h}) REPRISE_CHECK(buffer->reserve(max_rows * config.hidden, kWhat));
  REPRISE_CHECK(q.reserve(max_rows * q_width, kWhat));
  REPRISE_CHECK(kv.reserve(2 * max_rows * kv_width, kWhat));
  const size_t narrow_rows = limits.in_float ? max_rows : kMaxNarrowRows;
  REPRISE_CHECK(attn.reserve((limits.in_float ? max_rows : max_results) * q_width, kWhat));
  for (auto* buffer : {&gate, &up}) {
    REPRISE_CHECK(buffer->reserve(narrow_rows * config.ffn, kWhat));
  }
  REPRISE_CHECK(result_x.reserve(max_results * config.hidden, kWhat));
  if (limits.in_float) return {};
  REPRISE_CHECK(input.reserve(max_rows * config.hidden, kWhat));
  REPRISE_CHECK(wide_attn.reserve(max_rows * q_width, kWhat));
  for (auto* buffer : {&wide_gate, &wide_up}) {
    REPRISE_CHECK(buffer->reserve(max_rows * config.ffn, kWhat));
  }
  return {};
}

class DeviceModel::Pass {
 public:
  /// x: the residual stream of the pass's rows.
  Pass(DeviceModel& model, const DevicePass& pass, float* x, DeviceAttentionOp& attention,
       cudaStream_t stream)
      : model_(model),
        config_(model.config_),
        b_(*model.buffers_),
        pass_(pass),
        x_(x),
        attention_(attention),
        stream_(stream) {}
  /// Of rows that are neither embedded nor finished here.
  Pass(DeviceModel& model, const DeviceLayerRows& rows, DeviceAttentionOp& attention,
       cudaStream_t stream)
      : Pass(model, prefill_pass(rows.rows), rows.x, attention, stream) {
    ranges_[range_count_++] = {rows.rows, rows.x, nullptr, b_.wide_attn.data()};
  }

  Status run() {
    REPRISE_CHECK(model_.embed(pass_.tokens, {pass_.rows, x_}, stream_));
    split_rows();
    for (uint32_t i = 0; i < config_.n_layer; ++i) {
      const Layer& layer = model_.layers_[i];
      REPRISE_CHECK(attend(layer, i));
      if (i + 1 == config_.n_layer) break;
      for (const RowRange& range : ranges()) REPRISE_CHECK(finish_layer(layer, range));
    }
    return pass_.results > 0 ? finish() : Status();
  }

  Status run_last_layer() {
    split_rows();
    REPRISE_CHECK(attend_layer(config_.n_layer - 1));
    return finish();
  }

  Status attend_layer(uint32_t index) { return attend(model_.layers_[index], index); }
  Status store_layer(uint32_t index) { return attend(model_.layers_[index], index, false); }
  Status run_layer(uint32_t index) {
    REPRISE_CHECK(attend_layer(index));
    return finish_layer(model_.layers_[index], ranges_[0]);
  }

 private:
  static DevicePass prefill_pass(uint32_t rows) {
    DevicePass pass;
    pass.rows = rows;
    return pass;
  }
  std::span<const RowRange> ranges() const { return {ranges_, range_count_}; }

  /// Decode rows apart from the others, unless there are so many that weights are better expanded.
  void split_rows() {
    const uint32_t alone = model_.in_float_ ? pass_.rows : pass_.decode_rows;
    const uint32_t narrow = alone <= model_.narrow_rows_ ? alone : 0;
    if (narrow > 0) ranges_[range_count_++] = {narrow, x_, b_.attn.data(), nullptr};
    if (narrow == pass_.rows) return;
    ranges_[range_count_++] = {pass_.rows - narrow, x_ + size_t{narrow} * config_.hidden, nullptr,
                               b_.wide_attn.data() + narrow * q_width()};
  }

  size_t q_width() const { return size_t{config_.n_head} * config_.head_dim; }
  size_t kv_width() const { return size_t{config_.n_kv_head} * config_.head_dim; }

  Status attend(const Layer& layer, uint32_t index, bool queries = true) {
    // Keys and values lie as their weights do, so that they may be computed at once.
    const bool swapped =
        std::less<>()(layer.v.weight.weights().codes, layer.k.weight.weights().codes);
    const Linear& lower = swapped ? layer.v : layer.k;
    const Linear& upper = swapped ? layer.k : layer.v;
    float *const lower_out = b_.kv.data(), *const upper_out = lower_out + b_.kv.size() / 2;
    size_t first = 0;
    for (const RowRange& range : ranges()) {
      const Product products[] = {
          {&layer.q.weight, layer.q.bias.data(), b_.q.data() + first * q_width()},
          {&lower.weight, lower.bias.data(), lower_out + first * kv_width()},
          {&upper.weight, upper.bias.data(), upper_out + first * kv_width()}};
      REPRISE_CHECK(
          multiply_normed(range, layer.attn_norm, std::span(products).subspan(queries ? 0 : 1)));
      first += range.rows;
    }
    LayerHeads heads;
    heads.layer = index;
    heads.q = queries ? b_.q.data() : nullptr;
    heads.k = swapped ? upper_out : lower_out;
    heads.v = swapped ? lower_out : upper_out;
    heads.q_norm = layer.q_norm.data();
    heads.k_norm = layer.k_norm.data();
    heads.decode_out = b_.attn.data();
    heads.prefill_out = b_.wide_attn.data() + pass_.decode_rows * q_width();
    REPRISE_CHECK(attention_.attend(heads, stream_));
    if (pass_.decode_rows > model_.narrow_rows_) {
      REPRISE_CUDA(round_to_bf16(b_.attn.data(), pass_.decode_rows * q_width(), b_.wide_attn.data(),
                                 stream_),
                   "attention");
    }
    return {};
  }

  Status finish_layer(const Layer& layer, const RowRange& range) {
    REPRISE_CHECK(add_output(layer.o, layer.attn_post_norm, range, range.attn, range.wide_attn));
    if (range.narrow()) {
      const Product products[] = {{&layer.gate.weight, layer.gate.bias.data(), b_.gate.data()},
                                  {&layer.up.weight, layer.up.bias.data(), b_.up.data()}};
      REPRISE_CHECK(multiply_normed(range, layer.mlp_norm, products));
      return add_output(layer.down, layer.mlp_post_norm, range, b_.gate.data(), nullptr,
                        b_.up.data());
    }
    const Product products[] = {{&layer.gate.weight, layer.gate.bias.data(), b_.wide_gate.data()},
                                {&layer.up.weight, layer.up.bias.data(), b_.wide_up.data()}};
    REPRISE_CHECK(multiply_normed(range, layer.mlp_norm, products, GemmOut::kBF16));
    REPRISE_CUDA(gated_activation(b_.wide_gate.data(), b_.wide_up.data(), config_.activation,
                                  range.rows, config_.ffn, b_.wide_gate.data(), stream_),
                 "the MLP");
    return add_output(layer.down, layer.mlp_post_norm, range, nullptr, b_.wide_gate.data());
  }

  /// products of rms_norm(x) * norm.
  Status multiply_normed(const RowRange& range, const DeviceBuffer<float>& norm,
                         std::span<const Product> products, GemmOut type = GemmOut::kF32) {
    if (range.narrow()) {
      MatvecInput input;
      input.x = range.x;
      input.stride = config_.hidden;
      input.norm_weight = norm.data();
      input.norm_eps = config_.norm_eps;
      return multiply_narrow(input, products, range.rows, false);
    }
    REPRISE_CUDA(rms_norm(range.x, norm.data(), config_.norm_eps, range.rows, config_.hidden,
                          b_.input.data(), stream_),
                 "a norm");
    return multiply_wide(b_.input.data(), products, range.rows, type, false);
  }

  /// x += post_norm(input W^T) * residual_scale. Narrow rows: input, or activation(input) * up
  /// where up is not null; wide rows: wide_input. Devices that share the model sum their products;
  /// without a post norm x is a term of the first one's.
  Status add_output(const Linear& linear, const DeviceBuffer<float>& post_norm,
                    const RowRange& range, const float* input, const __nv_bfloat16* wide_input,
                    const float* up = nullptr) {
    const bool plain = post_norm.size() == 0 && config_.residual_scale == 1.0f;
    const bool accumulate = plain && model_.shard_.rank == 0;
    float* out = plain ? range.x : b_.h.data();
    const Product product = {&linear.weight, linear.bias.data(), out};
    if (range.narrow()) {
      MatvecInput from;
      from.x = input;
      from.stride = linear.weight.cols();
      from.up = up;
      from.activation = config_.activation;
      REPRISE_CHECK(multiply_narrow(from, {&product, 1}, range.rows, accumulate));
    } else {
      REPRISE_CHECK(
          multiply_wide(wide_input, {&product, 1}, range.rows, GemmOut::kF32, accumulate));
    }
    if (model_.communicator_ != nullptr) {
      const size_t size = size_t{range.rows} * config_.hidden;
      REPRISE_CHECK(model_.communicator_->sum(out, size, stream_));
    }
    if (plain) return {};
    REPRISE_CUDA(add_rows(range.x, b_.h.data(), post_norm.data(), config_.norm_eps,
                          config_.residual_scale, range.rows, config_.hidden, stream_),
                 "a residual");
    return {};
  }

  Status multiply_narrow(const MatvecInput& input, std::span<const Product> products, uint32_t rows,
                         bool accumulate) {
    for (uint32_t first = 0; first < rows; first += kMatvecBatch) {
      MatvecArgs args;
      args.input = input;
      args.input.x += first * input.stride;
      if (input.up != nullptr) args.input.up += first * input.stride;
      args.batch = std::min(kMatvecBatch, rows - first);
      args.count = static_cast<uint32_t>(products.size());
      args.overlap = true;
      args.apart = input.norm_weight == nullptr && input.up == nullptr;  // behind attention
      for (size_t i = 0; i < products.size(); ++i) {
        const size_t n = products[i].weight->rows();
        args.projections[i] = {products[i].weight, static_cast<float*>(products[i].out) + first * n,
                               n, products[i].bias, accumulate};
      }
      REPRISE_CUDA(matvec(args, stream_), "a product of few rows");
    }
    return {};
  }

  /// products: up to three.
  Status multiply_wide(const __nv_bfloat16* input, std::span<const Product> products, uint32_t rows,
                       GemmOut type, bool accumulate) {
    GemmArgs args[3];
    for (size_t i = 0; i < products.size(); ++i) {
      const Product& product = products[i];
      args[i] = {product.weight,         input,        rows,      product.out, type,
                 product.weight->rows(), product.bias, accumulate};
    }
    return model_.gemm_->multiply(std::span(args).first(products.size()), stream_);
  }

  /// The rest of the last layer, only for the rows whose logits are wanted, and their logits.
  Status finish() {
    RowRange range = {pass_.results, x_, b_.attn.data(), nullptr};
    if (pass_.results > pass_.decode_rows || pass_.rows > pass_.decode_rows) {
      REPRISE_CHECK(gather_results());
      range.x = b_.result_x.data();
      if (model_.in_float_) range.attn = b_.q.data();
    }
    if (pass_.results > model_.narrow_rows_) {
      REPRISE_CUDA(
          round_to_bf16(b_.attn.data(), pass_.results * q_width(), b_.wide_attn.data(), stream_),
          "results");
      range.attn = nullptr;
      range.wide_attn = b_.wide_attn.data();
    }
    REPRISE_CHECK(finish_layer(model_.layers_.back(), range));
    REPRISE_CHECK(model_.communicator_ == nullptr ? multiply_head(range, pass_.logits)
                                                  : share_head(range));
    if (config_.logit_scale == 1.0f && config_.logit_soft_cap == 0.0f) return {};
    REPRISE_CUDA(scale_and_cap(pass_.logits, size_t{pass_.results} * config_.vocab,
                               config_.logit_scale, config_.logit_soft_cap, stream_),
                 "logits");
    return {};
  }

  Status multiply_head(const RowRange& range, float* logits) {
    const Linear& head = model_.head();
    const Product product = {&head.weight, head.bias.data(), logits};
    return multiply_normed(range, model_.final_norm_, {&product, 1});
  }

  /// Every device computes its part of the vocabulary for all.
  Status share_head(const RowRange& range) {
    const auto [rank, count] = model_.shard_;
    const size_t rows = range.rows;
    const size_t part = rows * shard_range(config_.vocab, {0, count}).count;
    float* parts = rows == 1 ? pass_.logits : b_.logits.data();
    REPRISE_CHECK(multiply_head(range, parts + rank * part));
    REPRISE_CHECK(model_.communicator_->gather(parts, part, stream_));
    for (uint32_t from = 0; rows > 1 && from < count; ++from) {
      const ShardRange words = shard_range(config_.vocab, {from, count});
      const size_t width = words.count * sizeof(float);
      REPRISE_CUDA(cudaMemcpy2DAsync(pass_.logits + words.first, config_.vocab * sizeof(float),
                                     parts + from * part, width, width, rows,
                                     cudaMemcpyDeviceToDevice, stream_),
                   "logits");
    }
    return {};
  }

  /// Decode rows stand at the front of x and attn already; the others are gathered behind them.
  Status gather_results() {
    const uint32_t decode = pass_.decode_rows, others = pass_.results - decode;
    const size_t hidden = config_.hidden;
    REPRISE_CUDA(cudaMemcpyAsync(b_.result_x.data(), x_, decode * hidden * sizeof(float),
                                 cudaMemcpyDeviceToDevice, stream_),
                 "results");
    REPRISE_CUDA(gather_rows(x_ + decode * hidden, pass_.prefill_results, others, config_.hidden,
                             b_.result_x.data() + decode * hidden, stream_),
                 "results");
    const auto width = static_cast<uint32_t>(q_width());
    const size_t after = decode * q_width();
    if (model_.in_float_) {  // to where the queries were
      REPRISE_CUDA(cudaMemcpyAsync(b_.q.data(), b_.attn.data(), after * sizeof(float),
                                   cudaMemcpyDeviceToDevice, stream_),
                   "results");
      REPRISE_CUDA(gather_rows(b_.attn.data() + after, pass_.prefill_results, others, width,
                               b_.q.data() + after, stream_),
                   "results");
      return {};
    }
    REPRISE_CUDA(gather_rows(b_.wide_attn.data() + after, pass_.prefill_results, others, width,
                             b_.attn.data() + after, stream_),
                 "results");
    return {};
  }

  DeviceModel& model_;
  const ModelConfig& config_;
  Buffers& b_;
  const DevicePass pass_;
  float* const x_;  // [rows, hidden]
  DeviceAttentionOp& attention_;
  cudaStream_t stream_;
  RowRange ranges_[2];
  size_t range_count_ = 0;
};

Status DeviceModel::forward(const DevicePass& pass, DeviceAttentionOp& attention,
                            cudaStream_t stream) {
  return Pass(*this, pass, buffers_->x.data(), attention, stream).run();
}

Status DeviceModel::embed(const int32_t* tokens, const DeviceLayerRows& rows, cudaStream_t stream) {
  REPRISE_CUDA(kernels::cuda::embed(embedding_.weight, tokens, rows.rows, config_.embedding_scale,
                                    rows.x, stream),
               "embedding");
  return {};
}

Status DeviceModel::store(uint32_t layer, const DeviceLayerRows& rows, DeviceAttentionOp& attention,
                          cudaStream_t stream) {
  return Pass(*this, rows, attention, stream).store_layer(layer);
}

Status DeviceModel::attend(uint32_t layer, const DeviceLayerRows& rows,
                           DeviceAttentionOp& attention, cudaStream_t stream) {
  return Pass(*this, rows, attention, stream).attend_layer(layer);
}

Status DeviceModel::forward_layer(uint32_t layer, const DeviceLayerRows& rows,
                                  DeviceAttentionOp& attention, cudaStream_t stream) {
  return Pass(*this, rows, attention, stream).run_layer(layer);
}

Status DeviceModel::finish(const DeviceLayerRows& rows, DeviceAttentionOp& attention, float* logits,
                           cudaStream_t stream) {
  DevicePass pass;
  pass.rows = pass.decode_rows = pass.results = rows.rows;
  pass.logits = logits;
  return Pass(*this, pass, rows.x, attention, stream).run_last_layer();
}

}  // namespace reprise
