// Lists of the keys with the largest products with centroids of queries, and the keys whose scores
// in them promise the largest logits (CSAttention as published, arXiv 2604.08584, section 3; see
// methods/csattention/centroid_lists.h). Sizes of launches of decode rows depend on capacities
// only, so that calls may be captured and replayed as sequences grow.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/key_codes.h"
#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

inline constexpr uint32_t kMostCentroids = 256;    // of a part
inline constexpr uint32_t kMostDirections = 2048;  // queries of a KV head that shape centroids
inline constexpr int kNoCosineByte = 0x40;         // four make a number that is larger than any
inline constexpr float kNoCosine = 0x1.80808p1f;
inline constexpr uint32_t kListEntryBytes = 4 + 2;  // a key and its score

/// Layers are those that have an index, counted from 0. Parts are neighbouring dims of a head.
struct ListShape {
  uint32_t layers = 0, n_head = 0, n_kv_head = 0, head_dim = 0, parts = 0, centroids = 0;

  REPRISE_HOST_DEVICE constexpr uint32_t dims() const { return head_dim / parts; }
  REPRISE_HOST_DEVICE constexpr uint32_t group() const { return n_head / n_kv_head; }
  /// Parts of KV heads of the layers before one.
  REPRISE_HOST_DEVICE constexpr size_t tasks(uint32_t layer) const {
    return size_t{layer} * n_kv_head * parts;
  }
  REPRISE_HOST_DEVICE constexpr size_t lists(uint32_t layer) const {
    return tasks(layer) * centroids;
  }
  REPRISE_HOST_DEVICE constexpr size_t cosines(uint32_t layer) const {
    return size_t{layer} * n_head * parts;
  }
};

/// Whether there are kernels for parts of so many dims: 8, 12, 16 or 32.
constexpr bool has_list_dims(uint32_t dims) {
  return dims == 8 || dims == 12 || dims == 16 || dims == 32;
}

/// An index of a sequence. Lists are heaps with the worst entry in front: of the lower score, and
/// among equal ones of the later key. Entries that no key has taken are ~0 at -inf.
struct ListIndex {
  float* centroids = nullptr;  // [layers, n_kv_head, parts, centroids, dims]; null: no index
  float2* usual = nullptr;     // [layers, n_kv_head, parts] a query's cosine: mean, deviation
  float* cosines = nullptr;    // [layers, n_head, parts] moving averages; kNoCosine = none yet
  uint32_t* keys = nullptr;    // [layers, n_kv_head, parts, centroids, stride]
  __half* scores = nullptr;    // the same
  int32_t* listed = nullptr;   // [layers] end of the keys that lists were offered; 0 = none
  int32_t* lengths = nullptr;  // [layers] entries of a list
  uint32_t stride = 0;

  bool operator==(const ListIndex&) const = default;
};

struct TrainCentroidsArgs {
  ListShape shape;
  ListIndex index;  // out: the layer's centroids and usual cosines; its averages are forgotten
  uint32_t layer = 0;
  const __nv_bfloat16* q = nullptr;  // [rows, n_head, head_dim] rotated
  uint32_t rows = 0;                 // rows * group at most kMostDirections
  uint32_t iterations = 0;
  const uint64_t* draws = nullptr;  // [centroids + 1] random bits: the first seed, then shares
  float* points = nullptr;          // [n_kv_head, parts, kMostDirections, dims] scratch
};
/// Spherical k-means (methods/csattention/spherical_kmeans.h) of the parts of queries, in the order
/// of rows and then of query heads; parts without a direction are left out, and where none has one
/// it is that of the first dim. cudaErrorNotSupported: !has_list_dims(), or more centroids than
/// kMostCentroids.
cudaError_t train_centroids(const TrainCentroidsArgs& args, cudaStream_t stream);

struct FillListsArgs {
  PagedKv kv;
  ListShape shape;
  ListIndex index;  // out: the layer's lists, listed and lengths
  uint32_t layer = 0;
  const uint32_t* pages = nullptr;  // page table of the sequence
  uint32_t end = 0, length = 0;     // of keys [0, end) the length best
  float scale = 1.0f;               // of products
  __half* products = nullptr;       // scratch
  size_t product_room = 0;          // at least list_products()
};
/// Products of a part: the least scratch.
constexpr size_t list_products(const ListShape& shape, uint32_t end) {
  return size_t{shape.centroids} * end;
}
/// Makes lists anew. Scores are rounded to half precision before they are compared; NaN is left
/// out. Errors as train_centroids().
cudaError_t fill_lists(const FillListsArgs& args, cudaStream_t stream);

struct OfferKeysArgs {
  PagedKv kv;
  ListShape shape;
  ListIndex index;
  uint32_t layer = 0;
  const uint32_t* pages = nullptr;  // page table of the sequence
  int32_t begin = 0, end = 0;       // keys to offer, from the layer's listed on; it becomes end
  float scale = 1.0f;
};
/// Lists take in keys that are better than their worst. Errors as train_centroids().
cudaError_t offer_keys(const OfferKeysArgs& args, cudaStream_t stream);

/// Rows of a pass, one of a sequence, and their indexes.
struct ListedRows {
  ListShape shape;
  CodeRules rules;                     // skip, period and cosine are not looked at
  float scale = 1.0f;                  // of products
  const int32_t* positions = nullptr;  // [count]; < 0 or beyond the table: nothing is read
  const ListIndex* indexes = nullptr;  // [count]
  uint32_t count = 0, capacity = 0;    // capacity: pages of a page table

  /// Whether a row searches.
  REPRISE_HOST_DEVICE bool searches(uint32_t row, const CodeRange& range) const {
    return range.chooses && range.end <= static_cast<int32_t>(capacity * kPageTokens) &&
           indexes[row].centroids != nullptr;
  }
};
/// Keys that a row of those that search chooses, at most.
REPRISE_HOST_DEVICE inline uint32_t listed_picks(const CodeRules& rules, const CodeRange& range) {
  const int32_t wanted = range.budget - rules.sink - (range.end - range.recent);
  const int32_t there = range.recent - rules.sink;
  return static_cast<uint32_t>(wanted < there ? wanted : there);
}

struct OfferNewKeysArgs {
  ListedRows rows;
  PagedKv kv;
  const uint32_t* tables = nullptr;  // [n_layer, table_rows, capacity] page tables
  uint32_t table_rows = 0;
  const uint32_t* model_layers = nullptr;  // [layers]
};
/// Offers lists what competes by now, in all layers of rows that search; choose_listed() counts it.
cudaError_t offer_new_keys(const OfferNewKeysArgs& args, cudaStream_t stream);

/// What stands for a part of a query.
struct ListAtoms {
  uint32_t centroid[2], count;  // 0: the part has no direction
  float weight[2];
};

struct ListSearchArgs {
  ListedRows rows;
  uint32_t layer = 0, model_layer = 0;
  const uint32_t* pages = nullptr;     // [count, capacity] page tables of the layer
  const float* q = nullptr;            // [count, n_head, head_dim] rotated
  bool backoff = true, norms = false;  // as CentroidListsOptions
  uint32_t most_entries = 0;           // of a list of any row
  // Scratch.
  ListAtoms* atoms = nullptr;  // [count, n_head, parts]
  uint64_t* sums = nullptr;    // [count, n_head, capacity * 16] zero, before and after a call
  float* scores = nullptr;     // the same shape
  // Out.
  uint32_t* picks = nullptr;  // [count, n_head, pick_capacity] positions of chosen keys, ascending
  int32_t* picked = nullptr;  // [count, n_head] how many
  uint32_t pick_capacity = 0;
  uint32_t* lists = nullptr;  // [count, capacity] pages of what is read besides, in order
  int32_t* keys = nullptr;    // [count] tokens of them, to the row's own
};
/// For every query head of rows that search: the centroids nearest to the parts of its query, the
/// sums of the scores of the keys that their lists have, and the keys with the largest sums; ties
/// go to the lower key, and keys in no list are never chosen. Besides, a row reads sinks and recent
/// keys; rows that do not search read all. Sums are exact in units of 2^-24, so that they do not
/// depend on an order. Errors as train_centroids().
cudaError_t choose_listed(const ListSearchArgs& args, cudaStream_t stream);

struct GatherKeysArgs {
  PagedKv kv;
  PagedKv side;                     // has a KV head for each query head; pages are written
  const uint32_t* pages = nullptr;  // [count, capacity] page tables of the layer
  const uint32_t* picks = nullptr;  // [count, n_head, pick_capacity]
  const int32_t* picked = nullptr;  // [count, n_head]
  uint32_t count = 0, capacity = 0, pick_capacity = 0;  // pick_capacity: whole pages
};
/// Copies picks of row i to side pages from i * pick_capacity / 16 on.
cudaError_t gather_keys(const GatherKeysArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
