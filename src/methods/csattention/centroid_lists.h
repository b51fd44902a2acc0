// CSAttention's own index (arXiv 2604.08584, section 3): centroids of prompt queries in subspaces,
// and for each the keys with the largest partial products.
//
// Centroids belong to a KV head and are made from the queries of all its query heads. A search adds
// the scores of the lists of the centroids nearest to the parts of a query; keys in no list are not
// candidates. Lists keep the length they had when they were made; new keys push out worse ones.
// Where a query's parts have become less like the prompt's, two centroids replace one, with the
// coefficients that come closest to its direction, so that no key counts twice.
//
// Three options repair what the published scores lose: parts of a query weighed by their length,
// the mean of the unlisted for a key that a list lacks, and products with centred keys.
#pragma once

#include "methods/csattention/key_index.h"
#include "methods/csattention/query_samples.h"
#include "methods/csattention/score_list.h"

namespace reprise {

struct CentroidListsOptions {
  uint32_t parts = 8;
  uint32_t centroids = 128;
  float share = 0.25f;  // of the keys that a list holds
  bool backoff = true;
  uint32_t iterations = 10;
  uint32_t seed = 1;
  bool norms = false;        // weigh a query's parts by their length
  bool absent_mean = false;  // a list scores keys that it lacks by their mean
  bool centred = false;  // products are of keys less the mean of those that the index is fitted to
};

class CentroidLists : public KeyIndex {
 public:
  CentroidLists(const CentroidListsOptions& options, const ModelConfig& config);
  /// Of a key and KV head in its lists.
  static double key_bytes(const CentroidListsOptions& options, const ModelConfig& config);

  std::unique_ptr<KeyIndex> clone() const override {
    return std::make_unique<CentroidLists>(*this);
  }
  void take_queries(const QueryRows& rows, const QueryWindow& window) override;
  void build(const QueryRows& rows, KeyRange keys) override;
  int32_t built_end(uint32_t layer) const override { return layers_[layer].built_end; }
  int32_t held_end(uint32_t layer) const override { return layers_[layer].listed; }
  void extend(const QueryRows& rows, int32_t end) override;
  uint64_t find(const QueryRows& rows, KeyRange candidates, size_t k, KeyPicks& picks) override;
  HeadSplit split() const override { return HeadSplit::kPerQueryHead; }
  void truncate(int32_t length) override;
  void save(StateWriter& out) const override;
  void load(StateReader& in, int32_t length) override;
  uint64_t bytes() const override;
  /// "backoff": share of lookups that took two centroids.
  PolicyStats stats() const override;
  void clear_stats() override { lookups_ = backoffs_ = 0; }

  const ScoreList& list(uint32_t layer, size_t kv_head, size_t part, size_t centroid) const {
    return layers_[layer].parts[kv_head * parts_.size() + part].lists[centroid];
  }
  /// [dims] of a part, in the order of its pairs.
  std::span<const float> centroid(uint32_t layer, size_t kv_head, size_t part, size_t index) const;
  std::span<const uint16_t> part_pairs(size_t part) const { return parts_[part]; }

 private:
  struct Part {                    // of a KV head
    std::vector<float> centroids;  // [centroids, dims] of unit length
    std::vector<float> means;      // [centroids] products with the mean key; empty: not centred
    std::vector<ScoreList> lists;  // [centroids]
    float usual = 0.0f;            // mean cosine of a prompt query and its centroid
    float spread = 0.0f;           // standard deviation of it
  };
  struct Layer {
    explicit Layer(const ModelConfig& config) : samples(config) {}
    int32_t built_end = 0, listed = 0;
    std::vector<Part> parts;     // [n_kv_head, parts]
    std::vector<float> cosines;  // [n_head, parts] moving averages; 2 = none yet
    QuerySamples samples;
  };
  struct Atoms {  // what stands for a part of a query
    size_t centroid[2];
    float weight[2];
    size_t count;
  };

  void build_part(const Layer& layer, size_t task, Part& part) const;
  void centre(const QueryRows& rows, size_t task, KeyRange keys, Part& part) const;
  void offer_keys(const QueryRows& rows, size_t task, KeyRange keys, Part& part) const;
  Atoms atoms(const Part& part, const float* q, size_t dims, float& cosine) const;
  uint64_t score(Layer& layer, const float* q, size_t head, KeyRange candidates,
                 std::vector<float>& scores, size_t& backoffs) const;

  const ModelConfig* config_;
  CentroidListsOptions options_;
  std::vector<std::vector<uint16_t>> parts_;  // pairs of dims of each
  std::vector<Layer> layers_;
  uint64_t lookups_ = 0, backoffs_ = 0;
};

}  // namespace reprise
