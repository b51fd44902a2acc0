#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/try.h"
#include "model/tensor_floats.h"

namespace reprise {
namespace {

using kernels::PackedMatrix;
using RowOrder = std::vector<uint32_t>;

// Source row of every packed row of a matrix of heads whose rotary pairs (i, i + dims/2) shall be
// adjacent; dimensions beyond dims stay where they are.
RowOrder adjacent_pairs(uint32_t heads, uint32_t head_dim, uint32_t dims) {
  RowOrder order(size_t{heads} * head_dim);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t head = 0; head < heads; ++head) {
    for (uint32_t i = 0; i < dims / 2; ++i) {
      const uint32_t first = head * head_dim;
      order[first + 2 * i] = first + i;
      order[first + 2 * i + 1] = first + i + dims / 2;
    }
  }
  return order;
}

// Rows [first, first + count) of a matrix.
TensorView row_slice(const TensorView& matrix, uint64_t first, uint64_t count) {
  const size_t row_bytes = matrix.bytes.size() / matrix.shape[0];
  return {matrix.name,
          matrix.type,
          {count, matrix.shape[1]},
          matrix.bytes.subspan(first * row_bytes, count * row_bytes)};
}

std::vector<float> reordered(std::span<const float> values, const RowOrder& order) {
  if (order.empty()) return {values.begin(), values.end()};
  std::vector<float> result(values.size());
  for (size_t i = 0; i < result.size(); ++i) result[i] = values[order[i]];
  return result;
}

class Loader {
 public:
  Loader(const TensorSource& source, const ModelConfig& config, bool expand, ThreadPool& pool,
         const ProgressFn& progress)
      : source_(source),
        config_(config),
        expand_(expand),
        names_(source.names(config)),
        pool_(pool),
        progress_(progress) {
    for (const TensorView& tensor : source.tensors()) total_ += tensor.bytes.size();
  }

  Result<ModelWeights> load() {
    ModelWeights weights;
    REPRISE_CHECK(matrix(names_.embedding, config_.vocab, config_.hidden, {}, weights.embedding));
    weights.layers.resize(config_.n_layer);
    for (uint32_t layer = 0; layer < config_.n_layer; ++layer) {
      prefix_ = fmt::format(fmt::runtime(names_.layer), layer);
      REPRISE_CHECK(attention(weights.layers[layer]));
      REPRISE_CHECK(mlp(weights.layers[layer]));
    }
    prefix_.clear();
    REPRISE_CHECK(norm(names_.final_norm, config_.hidden, {}, weights.final_norm));
    if (!config_.tied_embeddings) {
      REPRISE_CHECK(matrix(names_.lm_head, config_.vocab, config_.hidden, {}, weights.lm_head));
    }
    return weights;
  }

 private:
  struct Slice {  // rows of a stored matrix that make one weight
    uint64_t first, count;
    const RowOrder* order;
    Linear* into;
  };

  Status attention(LayerWeights& layer) {
    const uint64_t q_rows = uint64_t{config_.n_head} * config_.head_dim;
    const uint64_t kv_rows = uint64_t{config_.n_kv_head} * config_.head_dim;
    RowOrder q_order, k_order, head_order;
    if (!config_.interleaved_rope) {
      q_order = adjacent_pairs(config_.n_head, config_.head_dim, config_.rope.dims);
      k_order = adjacent_pairs(config_.n_kv_head, config_.head_dim, config_.rope.dims);
      head_order = adjacent_pairs(1, config_.head_dim, config_.rope.dims);
    }
    REPRISE_CHECK(norm(names_.attn_norm, config_.hidden, {}, layer.attn_norm));
    if (config_.fused_weights) {
      const Slice slices[] = {{0, q_rows, &q_order, &layer.q},
                              {q_rows, kv_rows, &k_order, &layer.k},
                              {q_rows + kv_rows, kv_rows, &no_order_, &layer.v}};
      REPRISE_CHECK(matrices(names_.qkv, q_rows + 2 * kv_rows, config_.hidden, slices));
    } else {
      REPRISE_CHECK(matrix(names_.q, q_rows, config_.hidden, q_order, layer.q));
      REPRISE_CHECK(matrix(names_.k, kv_rows, config_.hidden, k_order, layer.k));
      REPRISE_CHECK(matrix(names_.v, kv_rows, config_.hidden, {}, layer.v));
    }
    if (config_.qk_norm) {
      REPRISE_CHECK(norm(names_.q_norm, config_.head_dim, head_order, layer.q_norm));
      REPRISE_CHECK(norm(names_.k_norm, config_.head_dim, head_order, layer.k_norm));
    }
    REPRISE_CHECK(matrix(names_.o, config_.hidden, q_rows, {}, layer.o));
    if (!config_.post_norms) return {};
    return norm(names_.attn_post_norm, config_.hidden, {}, layer.attn_post_norm);
  }

  Status mlp(LayerWeights& layer) {
    REPRISE_CHECK(norm(names_.mlp_norm, config_.hidden, {}, layer.mlp_norm));
    if (config_.fused_weights) {
      const Slice slices[] = {{0, config_.ffn, &no_order_, &layer.gate},
                              {config_.ffn, config_.ffn, &no_order_, &layer.up}};
      REPRISE_CHECK(matrices(names_.gate_up, uint64_t{2} * config_.ffn, config_.hidden, slices));
    } else {
      REPRISE_CHECK(matrix(names_.gate, config_.ffn, config_.hidden, {}, layer.gate));
      REPRISE_CHECK(matrix(names_.up, config_.ffn, config_.hidden, {}, layer.up));
    }
    REPRISE_CHECK(matrix(names_.down, config_.hidden, config_.ffn, {}, layer.down));
    if (!config_.post_norms) return {};
    return norm(names_.mlp_post_norm, config_.hidden, {}, layer.mlp_post_norm);
  }

  Status matrix(std::string_view name, uint64_t rows, uint64_t cols, const RowOrder& order,
                Linear& into) {
    const Slice slice{0, rows, &order, &into};
    return matrices(name, rows, cols, {&slice, 1});
  }

  // Reads a stored matrix, and its bias where there is one, into the weights it holds.
  Status matrices(std::string_view name, uint64_t rows, uint64_t cols,
                  std::span<const Slice> slices) {
    const std::string base = prefix_ + std::string(name);
    const uint64_t shape[] = {rows, cols};
    REPRISE_TRY(const TensorView* tensor, source_.require(base + ".weight", shape));
    const std::string bias_name = base + ".bias";
    std::vector<float> bias;
    const bool required =
        config_.qkv_bias && (name == names_.q || name == names_.k || name == names_.v);
    if (required || source_.find(bias_name) != nullptr) {
      REPRISE_TRY(const TensorView* stored, source_.require(bias_name, {shape, 1}));
      REPRISE_TRY(bias, tensor_floats(*stored));
      REPRISE_CHECK(advance(*stored));
    }
    for (const Slice& slice : slices) {
      const TensorView part = row_slice(*tensor, slice.first, slice.count);
      PackedMatrix& weight = slice.into->weight;
      REPRISE_TRY(weight, PackedMatrix::pack({&part, 1}, *slice.order, pool_));
      if (expand_) {
        REPRISE_TRY(weight, weight.expanded(pool_));
      }
      if (bias.empty()) continue;
      slice.into->bias = reordered(std::span(bias).subspan(slice.first, slice.count), *slice.order);
    }
    return advance(*tensor);
  }

  Status norm(std::string_view name, uint64_t size, const RowOrder& order,
              std::vector<float>& into) {
    REPRISE_TRY(const TensorView* tensor,
                source_.require(prefix_ + std::string(name) + ".weight", {&size, 1}));
    REPRISE_TRY(const std::vector<float> values, tensor_floats(*tensor));
    into = reordered(values, order);
    if (config_.norm_plus_one) {
      for (float& value : into) value += 1.0f;
    }
    return advance(*tensor);
  }

  Status advance(const TensorView& tensor) {
    source_.release(tensor);
    done_ += tensor.bytes.size();
    if (progress_ && !progress_({"load", done_, total_, "bytes"})) {
      return fail(ErrorCode::kCancelled, "loading the model was stopped");
    }
    return {};
  }

  const TensorSource& source_;
  const ModelConfig& config_;
  const bool expand_;
  const TensorNames names_;
  ThreadPool& pool_;
  const ProgressFn& progress_;
  const RowOrder no_order_;
  std::string prefix_;
  uint64_t done_ = 0, total_ = 0;
};

}  // namespace

size_t ModelWeights::step_bytes() const {
  size_t bytes = head().weight.bytes();
  for (const LayerWeights& layer : layers) {
    for (const Linear* linear :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      bytes += linear->weight.bytes() + linear->bias.size() * sizeof(float);
    }
    for (const auto* norm : {&layer.attn_norm, &layer.q_norm, &layer.k_norm, &layer.attn_post_norm,
                             &layer.mlp_norm, &layer.mlp_post_norm}) {
      bytes += norm->size() * sizeof(float);
    }
  }
  return bytes + final_norm.size() * sizeof(float);
}

Result<ModelWeights> load_weights(const TensorSource& source, const ModelConfig& config,
                                  bool expand, ThreadPool& pool, const ProgressFn& progress) {
  return Loader(source, config, expand, pool, progress).load();
}

}  // namespace reprise
