// y = x W^T for weights that stay quantised in memory.
//
// Two numerics, chosen by the caller's phase and never by the number of rows, so that a row's
// result depends neither on the batch it is computed in nor on the thread count:
//   decode:  activations rounded to 16 bits with one scale per 32 values (weights of 8 bits and
//            less: two int8 products) or kept in float (F32, F16, BF16 weights); bounded by reading
//            W once for all rows
//   prefill: weights and activations rounded to bf16, products summed in float; or, with AVX2 and
//            in portable code, quantised weights as they are and activations rounded to integers
//            with one scale per 32 values: 8 bits, and the largest of the 32 in float, for weights
//            of up to 5 bits but IQ4_NL, 16 bits for others, summed as integers and then in float;
//            bounded by the machine's throughput of either
// F32 weights are computed in float in both phases, so tiny reference models agree to float
// rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/tensor_type.h"
#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/phase.h"
#include "reprise/error.h"

namespace reprise::kernels {

/// A weight matrix [rows, cols] repacked into panels of 16 rows, so that one vector register holds
/// the same column of 16 rows and dot products need no horizontal sums. Same bits per weight as the
/// source (K-quants may be re-blocked); rows are padded to 16 with zeros.
class PackedMatrix {
 public:
  /// Packs the concatenation of parts along the rows (all [n_i, cols] of one column count, types
  /// may differ only if the packed format agrees; else kUnsupportedType). row_order, if not empty,
  /// has one source row (over the concatenation) per packed row. Runs on the pool.
  static Result<PackedMatrix> pack(std::span<const TensorView> parts,
                                   std::span<const uint32_t> row_order, ThreadPool& pool);

  /// The same weights as F32. kOutOfMemory.
  Result<PackedMatrix> expanded(ThreadPool& pool) const;

  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  TensorType type() const { return type_; }
  /// Bytes that one decode step reads.
  size_t bytes() const { return bytes_; }
  const std::byte* data() const { return data_.get(); }

 private:
  size_t rows_ = 0, cols_ = 0, bytes_ = 0;
  TensorType type_ = TensorType::kF32;
  std::shared_ptr<std::byte[]> data_;  // panels of 16 rows, 64-byte aligned, huge pages
};

/// Dequantises one row into out [cols]; used for token embeddings.
void unpack_row(const PackedMatrix& matrix, size_t row, float* out);

/// Buffers that calls reuse; one per engine, not shared between concurrent calls.
struct MatmulScratch {
  std::vector<std::byte> normalised;
  std::vector<std::byte> activations;
  std::vector<std::byte> gated;
  std::vector<std::byte> panels;
};

/// rms_norm of ops.h, before a product; none where weight is null.
struct RowNorm {
  const float* weight = nullptr;  // [k]
  float eps = 0.0f;
};

/// The left side of products: [rows, stride] of which the weights' k columns are used.
struct MatmulRows {
  const float* x = nullptr;
  size_t rows = 0;
  size_t stride = 0;  // floats between rows
  RowNorm norm{};
};

/// One product of a group that shares its input.
struct Projection {
  const PackedMatrix* weight = nullptr;  // [n, k]
  float* out = nullptr;                  // [rows, out_stride], first n columns written
  size_t out_stride = 0;                 // floats between rows of out
  const float* bias = nullptr;           // [n] or null
  bool accumulate = false;               // add to out (a residual) instead of overwriting it
};

/// For every projection: out = norm(x) W^T + bias. Runs on the pool; weights are read once per call
/// in the decode phase, whatever rows is.
void matmul(std::span<const Projection> projections, const MatmulRows& x, Phase phase,
            ThreadPool& pool, MatmulScratch& scratch);

/// The feed-forward layer y = down(act(gate(x)) * up(x)); only down has an out.
struct GatedMlp {
  Projection gate, up, down;
  Activation activation = Activation::kSilu;
};

/// The same bits as matmul, gated_activation and matmul; what is gated stays inside the scratch.
void gated_mlp(const GatedMlp& mlp, const MatmulRows& x, Phase phase, ThreadPool& pool,
               MatmulScratch& scratch);

}  // namespace reprise::kernels
