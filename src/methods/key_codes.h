// Product-quantised keys of a sequence: a codebook per layer and KV head, a few bytes per key.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/policy.h"
#include "base/state_bytes.h"
#include "methods/code_blocks.h"
#include "methods/kmeans.h"

namespace reprise {

struct KeyCodesOptions {
  uint32_t parts = 2;  // of the dims of a head, each with a codebook
  uint32_t bits = 6;   // of a code; up to 4, two codes share a byte
  uint32_t iterations = 10;
  uint32_t seed = 1;
  float skip =
      0.0f;  // share of a query's summed squared spans of products whose codes are not read
  uint32_t sample_pages = 256;  // codebooks come from so many pages, evenly spread over the prompt
};

/// A metric (see KeyPoints) for every part of every KV head: [n_kv_head parts][dims, dims], or
/// empty.
using PartMetrics = std::vector<std::vector<float>>;

/// The pairs of dims of each of at most `parts` contiguous parts of a head.
std::vector<std::vector<uint16_t>> split_pairs(uint32_t head_dim, uint32_t parts);

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
  /// What the query heads of a KV head look codes up in.
  struct Lookup {
    const float* q = nullptr;             // [group, head_dim]
    std::vector<uint8_t> tables;          // of packed codes, as the rest: see kernels::code_tables
    std::vector<float> low, step, spans;  // low: with what planes that are not read count as
    std::vector<uint16_t> planes;         // that are read
  };
  /// q: [group, head_dim] already scaled, which must outlive the lookup.
  void prepare_lookup(uint32_t layer, size_t kv_head, const float* q, Lookup& lookup) const;
  /// Fetches the packed codes that sums from key `begin` on read first, of all planes: which of
  /// them are read is not known before the lookup.
  void fetch(uint32_t layer, size_t kv_head, int32_t begin) const;
  /// logits [group, end - begin], rows stride apart, of the query heads of a KV head against the
  /// reconstructed keys [begin, end). Packed codes give them to within 1/254 of the widest span of
  /// products in a part, for each part, and leave out the planes that tell least. Returns the bytes
  /// of codes that were read.
  uint64_t logits(uint32_t layer, size_t kv_head, const Lookup& lookup, int32_t begin, int32_t end,
                  float* logits, size_t stride) const;
  /// The same of one range alone.
  uint64_t logits(uint32_t layer, size_t kv_head, const float* q, int32_t begin, int32_t end,
                  float* logits, size_t stride) const;

  /// Whether two codes share a byte.
  bool packed() const { return per_byte_ == 2; }
  /// tops [group, (end - begin) / 16]: the largest of these logits of every 16 keys; packed codes.
  uint64_t page_tops(uint32_t layer, size_t kv_head, const Lookup& lookup, int32_t begin,
                     int32_t end, float* tops, size_t stride) const;

  void truncate(int32_t length);
  void save(StateWriter& out) const;
  /// See KeyIndex::load.
  void load(StateReader& in, int32_t length);

  // What a device keeps has the same form.

  uint32_t clusters() const { return static_cast<uint32_t>(clusters_); }
  int32_t coded(uint32_t layer) const { return layers_[layer].coded; }
  const PartMetrics& metrics(uint32_t layer) const { return *layers_[layer].metrics; }
  /// Writes the [key_bytes, 256] codes of keys from 256 index on.
  void copy_block(uint32_t layer, size_t kv_head, size_t index, uint8_t* codes) const;
  /// Takes a layer over, whose codes the caller writes to block(). centroids: [n_kv_head, clusters,
  /// head_dim].
  void adopt(uint32_t layer, int32_t trained_end, int32_t coded, PartMetrics metrics,
             std::span<const float> centroids);
  std::span<uint8_t> block(uint32_t layer, size_t kv_head, size_t index) {
    return layers_[layer].heads[kv_head].codes.block(index * CodeBlocks::kBlock);
  }
  uint64_t code_bytes() const { return size_t{config_->n_kv_head} * key_bytes(); }  // of a key
  uint64_t codebook_bytes() const;                                                  // of one layer
  uint64_t bytes() const;
  /// Index of a key's centroid, if the key has codes.
  size_t code(uint32_t layer, size_t kv_head, size_t part, size_t key) const {
    const CodeBlocks::Place place = layers_[layer].heads[kv_head].codes.place(key);
    const uint8_t byte = place.codes[part / per_byte_ * place.stride];
    return per_byte_ == 1 ? byte : byte >> 4 * (part % 2) & 15;
  }
  /// [clusters, head_dim]: the dims of every part hold that part's centroids.
  std::span<const float> centroids(uint32_t layer, size_t kv_head) const {
    return layers_[layer].heads[kv_head].book->centroids;
  }
  std::span<const uint16_t> part_pairs(size_t part) const { return parts_[part]; }

 private:
  struct Codebook {
    std::vector<float> centroids;   // [clusters, head_dim], the dims of all parts side by side
    std::vector<float> transposed;  // [head_dim, columns_]
    std::vector<float> directions;  // [clusters, head_dim] and
    std::vector<float> halves;      // [parts, clusters]: see weigh_centroids()
  };
  struct Head {  // copies share what is whole
    std::shared_ptr<Codebook> book;
    CodeBlocks codes;
  };
  struct Layer {
    int32_t trained_end = 0;  // keys from here on did not shape the codebooks; 0 = none yet
    int32_t coded = 0;        // keys with codes
    std::vector<Head> heads;  // [n_kv_head]
    std::shared_ptr<const PartMetrics> metrics = std::make_shared<PartMetrics>();
  };

  using SumCodes = void (*)(const kernels::CodeSumsArgs&);
  static constexpr size_t kLanes = 4;
  using Lanes = std::array<float, kLanes>;

  std::shared_ptr<Codebook> make_book() const;
  /// What follows from the centroids of a part.
  void prepare(Codebook& book, const KeyPoints& points, size_t part) const;
  /// The same for all parts of a KV head.
  void prepare(const Layer& layer, size_t index) const;
  size_t key_bytes() const { return (parts_.size() + per_byte_ - 1) / per_byte_; }
  /// A kernel over keys [begin, end), whose sums become logits. unit: keys of a sum.
  uint64_t packed_logits(SumCodes kernel, const Head& head, const Lookup& lookup, size_t begin,
                         size_t end, size_t unit, float* logits, size_t stride) const;
  /// The kernel over whole blocks; args but for where the codes lie.
  static void sum_codes(SumCodes kernel, const CodeBlocks& codes, size_t first, size_t blocks,
                        size_t unit, kernels::CodeSumsArgs args);
  void load_head(StateReader& in, Layer& layer, size_t index) const;
  /// The bytes of codes that are read, given the spans of products: [group, parts].
  void choose_planes(std::span<const float> spans, std::vector<uint16_t>& planes) const;
  void fill_table(const Codebook& book, const float* q, size_t lanes, std::span<Lanes> table) const;
  KeyPoints points(const kernels::KvLayout* layout, std::span<const kernels::PageSpan> pages,
                   const Layer& layer, size_t kv_head, size_t part) const;

  const ModelConfig* config_;
  KeyCodesOptions options_;
  size_t clusters_;
  size_t per_byte_;                           // codes: 1 or 2
  size_t columns_;                            // of transposed centroids
  std::vector<std::vector<uint16_t>> parts_;  // pairs of dims of each
  std::vector<uint32_t> first_dims_;          // [parts + 1] where they begin
  std::vector<Layer> layers_;
};

}  // namespace reprise
