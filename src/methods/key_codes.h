// Product-quantised keys of a sequence: a codebook per layer and KV head, a few bytes per key.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/policy.h"
#include "methods/kmeans.h"

namespace reprise {

struct KeyCodesOptions {
  uint32_t parts = 2;  // of the dims of a head, each with a codebook
  uint32_t bits = 6;   // of a code; up to 4, two codes share a byte
  uint32_t iterations = 10;
  uint32_t seed = 1;
};

/// A metric (see KeyPoints) for every part of every KV head: [n_kv_head parts][dims, dims], or
/// empty.
using PartMetrics = std::vector<std::vector<float>>;

/// The pairs of dims of each of at most `parts` contiguous parts of a head.
std::vector<std::vector<uint16_t>> split_pairs(uint32_t head_dim, uint32_t parts);

/// Codebooks come from at most 4096 keys: those of 256 pages spread evenly over the prompt.
class KeyCodes {
 public:
  KeyCodes(const KeyCodesOptions& options, const ModelConfig& config);

  /// Makes the codebooks of the rows' layer from keys [begin, end); forgets its codes. Distances of
  /// keys are those of the metrics, from now on.
  void train(const QueryRows& rows, int32_t begin, int32_t end, PartMetrics metrics = {});
  bool trained(uint32_t layer) const { return trained_end(layer) > 0; }
  int32_t trained_end(uint32_t layer) const { return layers_[layer].trained_end; }
  /// Codes the keys below end that have no code yet.
  void encode(const QueryRows& rows, int32_t end);
  /// logits [group, end - begin], rows stride apart, of the query heads of a KV head against the
  /// reconstructed keys [begin, end). q: [group, head_dim] already scaled.
  void logits(uint32_t layer, size_t kv_head, const float* q, int32_t begin, int32_t end,
              float* logits, size_t stride) const;

  void truncate(int32_t length);
  uint64_t code_bytes() const { return size_t{config_->n_kv_head} * key_bytes(); }  // of a key
  uint64_t codebook_bytes() const;                                                  // of one layer
  uint64_t bytes() const;
  /// Index of a key's centroid, if the key has codes.
  size_t code(uint32_t layer, size_t kv_head, size_t part, size_t key) const {
    const uint8_t byte = layers_[layer].heads[kv_head].codes[part / per_byte_][key];
    return per_byte_ == 1 ? byte : byte >> 4 * (part % 2) & 15;
  }
  /// [clusters, head_dim]: the dims of every part hold that part's centroids.
  std::span<const float> centroids(uint32_t layer, size_t kv_head) const {
    return layers_[layer].heads[kv_head].centroids;
  }
  std::span<const uint16_t> part_pairs(size_t part) const { return parts_[part]; }

 private:
  struct Head {
    std::vector<float> centroids;   // [clusters, head_dim], the dims of all parts side by side
    std::vector<float> transposed;  // [head_dim, clusters]
    std::vector<std::vector<uint8_t>> codes;  // [key_bytes][keys]
  };
  struct Layer {
    int32_t trained_end = 0;  // keys from here on did not shape the codebooks; 0 = none yet
    int32_t coded = 0;        // keys with codes
    std::vector<Head> heads;  // [n_kv_head]
    PartMetrics metrics;
  };

  static constexpr size_t kLanes = 4;
  using Lanes = std::array<float, kLanes>;

  size_t key_bytes() const { return (parts_.size() + per_byte_ - 1) / per_byte_; }
  void fill_table(const Head& head, const float* q, size_t lanes, std::span<Lanes> table) const;
  KeyPoints points(const QueryRows& rows, std::span<const kernels::PageSpan> pages, size_t kv_head,
                   size_t part) const;

  const ModelConfig* config_;
  KeyCodesOptions options_;
  size_t clusters_;
  size_t per_byte_;                           // codes: 1 or 2
  std::vector<std::vector<uint16_t>> parts_;  // pairs of dims of each
  std::vector<Layer> layers_;
};

}  // namespace reprise
