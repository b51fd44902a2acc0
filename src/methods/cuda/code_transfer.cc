// Indexes of a device to and from the host's form, in which they are saved.
#include <algorithm>

#include "base/try.h"
#include "methods/cuda/code_pool.h"
#include "methods/key_codes.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "moving an index of keys";
constexpr auto kTokens = static_cast<int32_t>(kernels::cuda::kPageTokens);

/// Calls body(layer, head, offset) with what a block has of layers that have codes for some of its
/// tokens. offset: in the block, of [planes, 256] codes.
template <class Body>
void for_coded_heads(const KeyCodes& codes, const CodeShape& shape,
                     std::span<const uint32_t> layers, size_t block, Body&& body) {
  for (uint32_t at = 0; at < layers.size(); ++at) {
    if (codes.coded(layers[at]) <= static_cast<int32_t>(block * kCodeBlock)) continue;
    for (uint32_t head = 0; head < shape.n_kv_head; ++head) {
      body(layers[at], head, (shape.heads(at) + head) * shape.plane_bytes());
    }
  }
}

/// Entries of a book's part. metric: [2, 2], or empty.
void write_part(const float* centroids, uint32_t clusters, size_t head_dim, size_t dim,
                std::span<const float> metric, float* part) {
  for (uint32_t i = 0; i < kCodeEntries; ++i) {  // fewer clusters than entries repeat
    const float* centroid = centroids + i % clusters * head_dim + dim;
    part[i] = centroid[0];
    part[kCodeEntries + i] = centroid[1];
  }
  float* const own = part + 2 * kCodeEntries;
  own[0] = metric.empty() ? 1.0f : metric[0];
  own[1] = metric.empty() ? 0.0f : metric[1];
  own[2] = metric.empty() ? 1.0f : metric[3];
}

}  // namespace

void DeviceCodeIndex::fetch_layer(uint32_t layer, std::span<const float> book,
                                  KeyCodes& codes) const {
  const CodeShape& shape = pool_->shape();
  const size_t parts = shape.parts(), dim = shape.head_dim, clusters = codes.clusters();
  std::vector<float> centroids(shape.n_kv_head * clusters * dim);
  PartMetrics metrics;
  for (size_t i = 0; i < shape.n_kv_head * parts; ++i) {
    const float* own = &book[(shape.heads(index_[layer]) * parts + i) * kBookPart];
    float* to = &centroids[i / parts * clusters * dim + 2 * (i % parts)];
    for (size_t cluster = 0; cluster < clusters; ++cluster) {
      to[cluster * dim] = own[cluster];
      to[cluster * dim + 1] = own[kCodeEntries + cluster];
    }
    const float* metric = own + 2 * kCodeEntries;
    metrics.push_back({metric[0], metric[1], metric[1], metric[2]});
  }
  const Layer& known = layers_[index_[layer]];
  codes.adopt(layer, known.built, known.coded, std::move(metrics), centroids);
}

Status DeviceCodeIndex::fetch(KeyCodes& codes) const {
  if (book_ == nullptr) return {};
  const CodeShape& shape = pool_->shape();
  const auto bring = [&](void* to, const void* from, size_t bytes) -> Status {
    REPRISE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, pool_->stream()), kWhat);
    REPRISE_CUDA(cudaStreamSynchronize(pool_->stream()), kWhat);
    return {};
  };
  std::vector<float> book(shape.book_floats());
  REPRISE_CHECK(bring(book.data(), book_->data(), book.size() * sizeof(float)));
  std::vector<uint32_t> layers;
  for (uint32_t layer = 0; layer < index_.size(); ++layer) {
    if (index_[layer] == IndexedLayers::kNone) continue;
    layers.push_back(layer);
    if (built_end(layer) > 0) fetch_layer(layer, book, codes);
  }
  std::vector<uint8_t> block(shape.block_bytes());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    REPRISE_CHECK(bring(block.data(), pool_->codes() + blocks_[i] * block.size(), block.size()));
    for_coded_heads(codes, shape, layers, i, [&](uint32_t layer, uint32_t head, size_t offset) {
      std::copy_n(&block[offset], shape.plane_bytes(), codes.block(layer, head, i).data());
    });
  }
  return {};
}

// Copies of memory that is not page-locked are staged before the call returns.
Result<bool> DeviceCodeIndex::adopt(const KeyCodes& codes, cudaStream_t stream) {
  const CodeShape& shape = pool_->shape();
  const size_t parts = shape.parts();
  std::vector<float> book(shape.book_floats());
  std::vector<uint32_t> layers;
  int32_t most = 0;
  for (uint32_t layer = 0; layer < index_.size(); ++layer) {
    if (index_[layer] == IndexedLayers::kNone) continue;
    layers.push_back(layer);
    if (!codes.trained(layer)) continue;
    layers_[index_[layer]] = {codes.trained_end(layer), codes.coded(layer) / kTokens * kTokens, 0};
    most = std::max(most, codes.coded(layer));
    const PartMetrics& metrics = codes.metrics(layer);
    for (size_t i = 0; i < shape.n_kv_head * parts; ++i) {
      const std::span<const float> metric =
          metrics.empty() ? std::span<const float>() : std::span(metrics[i]);
      write_part(codes.centroids(layer, i / parts).data(), codes.clusters(), shape.head_dim,
                 2 * (i % parts), metric,
                 &book[(shape.heads(index_[layer]) * parts + i) * kBookPart]);
    }
  }
  REPRISE_TRY(const bool has_room, own_blocks(0, most, stream));
  if (!has_room) return false;
  REPRISE_CHECK(own_book(stream));
  REPRISE_CUDA(cudaMemcpyAsync(book_->data(), book.data(), book.size() * sizeof(float),
                               cudaMemcpyHostToDevice, stream),
               kWhat);
  std::vector<uint8_t> block(shape.block_bytes());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    for_coded_heads(codes, shape, layers, i, [&](uint32_t layer, uint32_t head, size_t offset) {
      codes.copy_block(layer, head, i, &block[offset]);
    });
    REPRISE_CUDA(cudaMemcpyAsync(pool_->codes() + blocks_[i] * block.size(), block.data(),
                                 block.size(), cudaMemcpyHostToDevice, stream),
                 kWhat);
  }
  REPRISE_CHECK(send_coded(stream));
  return true;
}

}  // namespace reprise
