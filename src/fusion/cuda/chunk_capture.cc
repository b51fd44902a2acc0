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
  const size_t begin = std::max<size_t>(first_, block_.first);
  const size_t end = block_.first + block_.count;
  if (begin < end) {
    const size_t from = (begin - block_.first) * width_, values = (end - begin) * width_;
    __nv_bfloat16* keys = buffer_.data() + (begin - first_) * width_;
    if (heads.k_norm == nullptr) {
      REPRISE_CUDA(round_to_bf16(heads.k + from, values, keys, stream), kWhat);
    } else {
      const auto vectors = static_cast<uint32_t>(values / config.head_dim);
      REPRISE_CUDA(rms_norm(heads.k + from, heads.k_norm, config.norm_eps, vectors, config.head_dim,
                            keys, stream),
                   kWhat);
    }
    REPRISE_CUDA(round_to_bf16(heads.v + from, values, keys + rows_ * width_, stream), kWhat);
  }
  return parts_.executor.attend(heads, stream);
}

Status ChunkCapture::copy_to(std::byte* block, size_t row_bytes) const {
  const size_t own = width_ * sizeof(__nv_bfloat16);
  const size_t rank = parts_.communicator != nullptr ? parts_.communicator->rank() : 0;
  REPRISE_CUDA(cudaMemcpy2D(block + rank * own, row_bytes, buffer_.data(), own, own, 2 * rows_,
                            cudaMemcpyDeviceToHost),
               kWhat);
  return {};
}

}  // namespace reprise
