// Product-quantised keys of a sequence: a codebook per layer and KV head, a few bytes per key.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/policy.h"

namespace reprise {

struct KeyCodesOptions {
  uint32_t parts = 2;  // of the dims of a head; each has a codebook and a byte per key
  uint32_t bits = 6;   // of a code
  uint32_t iterations = 10;
  uint32_t seed = 1;
};

/// Codebooks come from at most 4096 keys: those of 256 pages spread evenly over the prompt.
class KeyCodes {
 public:
  KeyCodes(const KeyCodesOptions& options, const ModelConfig& config);

  /// Makes the codebooks of the rows' layer from keys [begin, end); forgets its codes.
  void train(const QueryRows& rows, int32_t begin, int32_t end);
  bool trained(uint32_t layer) const { return layers_[layer].trained_end > 0; }
  /// Codes the keys below end that have no code yet.
  void encode(const QueryRows& rows, int32_t end);
  /// logits [group, end - begin], rows stride apart, of the query heads of a KV head against the
  /// reconstructed keys [begin, end). q: [group, head_dim] already scaled.
  void logits(uint32_t layer, size_t kv_head, const float* q, int32_t begin, int32_t end,
              float* logits, size_t stride) const;

  void truncate(int32_t length);
  uint64_t code_bytes() const { return size_t{config_->n_kv_head} * parts_.size(); }  // of a key
  uint64_t codebook_bytes() const;  // of one layer
  uint64_t bytes() const;
  /// [keys] indices into the centroids, one per key that has a code.
  std::span<const uint8_t> codes(uint32_t layer, size_t kv_head, size_t part) const {
    return layers_[layer].heads[kv_head].codes[part];
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
    std::vector<std::vector<uint8_t>> codes;  // [parts][keys]
  };
  struct Layer {
    int32_t trained_end = 0;  // keys from here on did not shape the codebooks; 0 = none yet
    int32_t coded = 0;        // keys with codes
    std::vector<Head> heads;  // [n_kv_head]
  };

  const ModelConfig* config_;
  KeyCodesOptions options_;
  size_t clusters_;
  std::vector<std::vector<uint16_t>> parts_;  // pairs of dims of each
  std::vector<Layer> layers_;
};

}  // namespace reprise
