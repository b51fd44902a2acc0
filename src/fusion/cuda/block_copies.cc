#include "fusion/cuda/block_copies.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <utility>

#include "base/try.h"
#include "kernels/cuda/device_status.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr std::string_view kWhat = "stored chunks";
static_assert(kBlockAlignment % StoredRow::kUnit == 0);

size_t rows_of(const StoredChunk& chunk) { return 2 * chunk.record().tokens.size(); }

/// Of all devices: rows of a few bytes would cost more than they save.
size_t scale_bytes(const StoredChunk& chunk, const RowShare& share) {
  return rows_of(chunk) * share.ranks * share.values / kernels::kScaleValues * sizeof(__half);
}

}  // namespace

DeviceBlock::DeviceBlock(const StoredChunk& chunk, const RowShare& share, size_t at)
    : codes_(chunk.has_codes()), at_(at), share_(share) {
  const size_t values = rows_of(chunk) * share.values;
  const size_t bytes = codes_ ? values + scale_bytes(chunk, share) : values * sizeof(__nv_bfloat16);
  scales_at_ = at + values;
  end_ = at + block_aligned(bytes);
}

StoredRow DeviceBlock::row(uint32_t row) const {
  const size_t first = row * share_.values, scales = share_.values / kernels::kScaleValues;
  if (!codes_) {
    return {static_cast<uint32_t>((at_ + first * sizeof(__nv_bfloat16)) / StoredRow::kUnit)};
  }
  return {static_cast<uint32_t>((at_ + first) / StoredRow::kUnit),
          static_cast<uint32_t>(scales_at_ / sizeof(__half) +
                                (row * share_.ranks + share_.rank) * scales)};
}

Status BlockCopies::add(const StoredChunk& chunk, const std::byte* block) {
  if (share_.ranks > 1 && chunk.has_codes()) {
    REPRISE_CHECK(finish());
    return copy_codes(chunk, block);
  }
  if (block != run_.data() + run_.size()) {
    REPRISE_CHECK(finish());
    run_ = {block, 0};
  }
  run_ = {run_.data(), run_.size() + block_stride(chunk)};
  return {};
}

Status BlockCopies::finish() {
  if (run_.empty()) return {};
  std::byte* const to = to_ + at_;
  const auto run = std::exchange(run_, {});
  at_ += run.size() / share_.ranks;
  if (share_.ranks > 1) {
    const size_t width = share_.values * sizeof(__nv_bfloat16);
    return copy_columns(to, run.data(), width, run.size() / (width * share_.ranks));
  }
  return copy(to, run.data(), run.size());
}

Status BlockCopies::copy_codes(const StoredChunk& chunk, const std::byte* block) {
  const size_t rows = rows_of(chunk), values = share_.values;
  std::byte* const to = to_ + at_;
  at_ = DeviceBlock(chunk, share_, at_).end();
  REPRISE_CHECK(copy_columns(to, block, values, rows));
  return copy(to + rows * values, block + rows * values * share_.ranks, scale_bytes(chunk, share_));
}

Status BlockCopies::copy(std::byte* to, const std::byte* from, size_t bytes) const {
  REPRISE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), kWhat);
  return {};
}

/// width: bytes of a row, of this rank.
Status BlockCopies::copy_columns(std::byte* to, const std::byte* from, size_t width,
                                 size_t rows) const {
  REPRISE_CUDA(cudaMemcpy2DAsync(to, width, from + share_.rank * width, width * share_.ranks, width,
                                 rows, cudaMemcpyHostToDevice, stream_),
               kWhat);
  return {};
}

}  // namespace reprise
