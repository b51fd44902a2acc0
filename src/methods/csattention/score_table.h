// CSAttention's table made dense: products of every query centroid with every key, in 4 bits.
#pragma once

#include "methods/csattention/logit_index.h"
#include "methods/csattention/query_samples.h"

namespace reprise {

struct ScoreTableOptions {
  uint32_t parts = 8;
  uint32_t centroids = 16;
  uint32_t iterations = 10;
  uint32_t seed = 1;
};

/// A part of a query is the least-squares combination of two centroids, the nearest and the one
/// nearest to what that leaves; its logits are the same combination of two rows of the table.
class ScoreTable : public LogitIndex {
 public:
  ScoreTable(const ScoreTableOptions& options, const ModelConfig& config, int32_t unit = 1);

  std::unique_ptr<KeyIndex> clone() const override { return std::make_unique<ScoreTable>(*this); }
  void take_queries(const QueryRows& rows, const QueryWindow& window) override;
  void build(const QueryRows& rows, KeyRange keys) override;
  int32_t built_end(uint32_t layer) const override { return layers_[layer].built_end; }
  int32_t held_end(uint32_t layer) const override { return layers_[layer].coded; }
  void extend(const QueryRows& rows, int32_t end) override;
  void truncate(int32_t length) override;
  void save(StateWriter& out) const override;
  void load(StateReader& in, int32_t length) override;
  uint64_t bytes() const override;

 private:
  struct Part {                               // of a KV head
    std::vector<float> centroids;             // [centroids, dims] of unit length
    std::vector<float> low, step;             // [centroids] product = low + step code
    std::vector<std::vector<uint8_t>> codes;  // [centroids][keys / 2], even keys in the low half
  };
  struct Layer {
    explicit Layer(const ModelConfig& config) : samples(config) {}
    int32_t built_end = 0, coded = 0;
    std::vector<Part> parts;  // [n_kv_head, parts]
    QuerySamples samples;
  };
  struct Atoms {  // of a part of a query
    size_t centroid[2];
    float weight[2];
  };

  void fit(const QueryRows& rows, size_t task, KeyRange keys, Part& part) const;
  void code(const QueryRows& rows, size_t task, KeyRange keys, Part& part) const;
  Atoms atoms(const Part& part, std::span<const uint16_t> pairs, const float* q) const;
  uint64_t estimate(uint32_t layer, size_t kv_head, const float* q, KeyRange keys, float* logits,
                    size_t stride) const override;
  uint64_t fixed_bytes() const override {
    return uint64_t{config().n_kv_head} * options_.centroids * config().head_dim * sizeof(float);
  }

  ScoreTableOptions options_;
  std::vector<std::vector<uint16_t>> parts_;  // pairs of dims of each
  std::vector<Layer> layers_;
};

}  // namespace reprise
