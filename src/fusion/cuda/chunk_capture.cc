#include "fusion/cuda/chunk_capture.h"

#include <algorithm>

#include "base/try.h"
#include "kernels/cuda/elementwise.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr std::string_view kWhat = "reading a chunk";

}  // namespace

Status ChunkCapture::attend(const LayerHeads& heads, cudaStream_t stream) {
  const ModelConfig& config = parts_.computes.config();
  const size_t values = block_.count * width_;
  if (heads.k_norm == nullptr) {
    REPRISE_CUDA(round_to_bf16(heads.k, values, buffer_.data(), stream), kWhat);
  } else {
    REPRISE_CUDA(rms_norm(heads.k, heads.k_norm, config.norm_eps, block_.count * config.n_kv_head,
                          config.head_dim, buffer_.data(), stream),
                 kWhat);
  }
  REPRISE_CHECK(take(2 * heads.layer, stream));
  REPRISE_CUDA(round_to_bf16(heads.v, values, buffer_.data(), stream), kWhat);
  REPRISE_CHECK(take(2 * heads.layer + 1, stream));
  return parts_.executor.attend(heads, stream);
}

Status ChunkCapture::take(size_t index, cudaStream_t stream) {
  const size_t row_bytes = width_ * sizeof(uint16_t);
  const size_t begin = std::max<size_t>(first_, block_.first);
  const size_t end = block_.first + block_.count;
  if (begin >= end) return {};
  REPRISE_CUDA(cudaMemcpyAsync(&blocks_[(index * rows_ + begin - first_) * row_bytes],
                               buffer_.data() + (begin - block_.first) * width_,
                               (end - begin) * row_bytes, cudaMemcpyDeviceToHost, stream),
               kWhat);
  return {};
}

Result<std::vector<std::byte>> ChunkCapture::finish() {
  REPRISE_CUDA(cudaStreamSynchronize(parts_.stream), kWhat);
  return std::move(blocks_);
}

}  // namespace reprise
