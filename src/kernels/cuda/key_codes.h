// Keys coded for the queries that will ask for them, and the pages whose codes promise the largest
// logits (after CSAttention, arXiv 2604.08584; see methods/csattention). A key's dims are cut into
// parts of two, and each part is replaced by the nearest of 16 centroids, in a metric that the
// prompt's queries give. Sizes of launches depend on capacities only, so that calls may be captured
// and replayed as sequences grow.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

inline constexpr uint32_t kCodeEntries = 16;                       // values of a code
inline constexpr uint32_t kCodeBlock = 256;                        // tokens
inline constexpr uint32_t kBlockPages = kCodeBlock / kPageTokens;  // of a block of codes
inline constexpr uint32_t kBookPart = 2 * kCodeEntries + 4;        // floats
inline constexpr uint32_t kMoments = 3;                            // floats of a part
inline constexpr uint32_t kTrainPages = 32;                        // 512 keys fit 16 centroids

/// Layers are those that have an index, counted from 0.
/// A block of codes: [layers][n_kv_head][planes][256] bytes, each two parts of a token, the first
/// in the low half.
/// A codebook: [layers][n_kv_head][parts][kBookPart]: centroids [2][16], then the metric's xx, xy
/// and yy, and nothing.
/// Moments: [layers][n_kv_head][parts][3] sums of xx, xy and yy of queries.
struct CodeShape {
  uint32_t layers = 0, n_kv_head = 0, head_dim = 0;

  REPRISE_HOST_DEVICE constexpr uint32_t parts() const { return head_dim / 2; }
  REPRISE_HOST_DEVICE constexpr uint32_t planes() const { return head_dim / 4; }
  REPRISE_HOST_DEVICE constexpr size_t heads(uint32_t layer) const {
    return size_t{layer} * n_kv_head;
  }
  REPRISE_HOST_DEVICE constexpr size_t plane_bytes() const { return size_t{planes()} * kCodeBlock; }
  REPRISE_HOST_DEVICE constexpr size_t block_bytes() const { return heads(layers) * plane_bytes(); }
  REPRISE_HOST_DEVICE constexpr size_t book_floats() const {
    return heads(layers) * parts() * kBookPart;
  }
  REPRISE_HOST_DEVICE constexpr size_t moments() const {
    return heads(layers) * parts() * kMoments;
  }
};

/// What is read of a sequence; see CsAttentionOptions.
struct CodeRules {
  int32_t budget = 0, sink = 0, window = 0;  // sink: whole pages
  float keep = 0.0f;
  int32_t activate = 0;   // up to this length everything is read
  int32_t staggered = 0;  // budgets from here on stagger layers
  float skip = 0.0f;
  int32_t period = 1;    // rows that a search serves at most
  float cosine = -1.0f;  // of queries, below which a row searches all the same; -1: none does
};

/// The keys that a row sees: whole pages [sink, recent) are coded and compete.
struct CodeRange {
  int32_t end = 0, budget = 0, recent = 0;
  bool chooses = false;
};

/// layer: of the model.
REPRISE_HOST_DEVICE inline CodeRange code_range(const CodeRules& rules, uint32_t layer,
                                                int32_t position) {
  constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
  CodeRange range;
  range.end = position + 1;
  const auto share = static_cast<int32_t>(ceilf(rules.keep * static_cast<float>(range.end)));
  range.budget = share > rules.budget ? share : rules.budget;
  const int32_t late = range.budget < rules.staggered ? 0 : static_cast<int32_t>(layer) % kTokens;
  range.recent = (range.end - rules.window - late) / kTokens * kTokens;
  range.chooses =
      range.end > range.budget && range.end > rules.activate && range.recent > rules.sink;
  return range;
}

/// Pages between sinks and recent ones that a row reads, of those that choose.
REPRISE_HOST_DEVICE inline int32_t chosen_pages(const CodeRules& rules, const CodeRange& range) {
  constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
  const int32_t later = rules.period - 1;  // keys that are read until the next search
  const int32_t wanted = (range.budget - rules.sink - (range.end - range.recent) - later) / kTokens;
  const int32_t there = (range.recent - rules.sink) / kTokens;
  return wanted < there ? wanted : there;
}

/// Whether what a row searched for serves another one; both are given by the end of their keys.
/// Layers take turns.
REPRISE_HOST_DEVICE inline bool search_holds(const CodeRules& rules, uint32_t layer,
                                             int32_t searched, int32_t end) {
  const auto turn = [&](int32_t at) { return (at + static_cast<int32_t>(layer)) / rules.period; };
  return searched > 0 && searched <= end && turn(searched) == turn(end);
}

/// A sequence's index, as a row of a pass sees it.
struct CodedRow {
  const float* book = nullptr;              // null: there is none
  float* moments = nullptr;                 // of queries that shape the next codebook
  int32_t* coded = nullptr;                 // [layers] pages with codes
  uint32_t ready = 0;                       // layers [0, ready) have a codebook
  uint32_t learn_begin = 0, learn_end = 0;  // layers whose decode queries are added to moments
  // The last searches, where the rules' period is longer than 1.
  int32_t* searched = nullptr;       // [layers] end of the keys of the row that searched; 0 = none
  __nv_bfloat16* queries = nullptr;  // [layers, n_head, head_dim] its own, where they are compared
  uint32_t* picks =
      nullptr;  // [layers, n_kv_head, pick_capacity] numbers of chosen pages, in order
};

struct QueryMomentsArgs {
  CodeShape shape;
  uint32_t layer = 0, n_head = 0, rows = 0;
  const __nv_bfloat16* q = nullptr;  // [rows, n_head, head_dim] rotated
  float* moments = nullptr;          // added to
};
/// Row by row; parts that are not finite are left out.
cudaError_t add_query_moments(const QueryMomentsArgs& args, cudaStream_t stream);

/// Pages from which a codebook is made, 16 tokens of each but of the last.
struct TrainPages {
  uint32_t ids[kTrainPages] = {};
  uint32_t tokens = 0;  // of all
};
struct TrainCodesArgs {
  PagedKv kv;
  CodeShape shape;
  uint32_t layer = 0;
  TrainPages pages;                                  // > 0 tokens
  uint32_t clusters = kCodeEntries, iterations = 0;  // fewer clusters than entries repeat
  uint64_t draws[kCodeEntries] = {};  // random bits: the first seed, then a share of what is left
  const float* moments = nullptr;
  float* book = nullptr;  // out: the layer's part
};
/// k-means (methods/kmeans.h) in the metric that moments give: scaled to a mean diagonal of 1, plus
/// kMetricPrior; Euclidean where there were no queries.
inline constexpr float kMetricPrior = 0.01f;
cudaError_t train_codes(const TrainCodesArgs& args, cudaStream_t stream);

struct CodeKeysArgs {
  PagedKv kv;
  CodeShape shape;
  uint32_t layer = 0;
  const uint32_t* pages = nullptr;  // page table of the sequence
  uint32_t first = 0, end = 0;      // pages to code
  const float* book = nullptr;
  const uint32_t* blocks = nullptr;  // block table of the sequence
  uint8_t* codes = nullptr;          // of all blocks
  int32_t* coded = nullptr;          // [layers] the layer's becomes end
};
/// Codes pages, all of whose keys are stored.
cudaError_t code_keys(const CodeKeysArgs& args, cudaStream_t stream);

/// Rows of a pass, one of a sequence, and their indexes.
struct CodedRows {
  CodeShape shape;
  CodeRules rules;
  const int32_t* positions = nullptr;  // [count]; < 0 or beyond the table: nothing is read
  const CodedRow* rows = nullptr;      // [count]
  const uint32_t* blocks = nullptr;    // [count, block_capacity] block tables
  uint8_t* codes = nullptr;
  uint32_t count = 0, capacity = 0, block_capacity = 0;  // capacity: pages of a page table

  REPRISE_HOST_DEVICE bool has_in_table(const CodeRange& range) const {
    return range.end > 0 && range.end <= static_cast<int32_t>(capacity * kPageTokens);
  }
};

struct CodeNewKeysArgs {
  CodedRows rows;
  PagedKv kv;
  const uint32_t* tables = nullptr;  // [n_layer, table_rows, capacity] page tables
  uint32_t table_rows = 0;
  const uint32_t* model_layers = nullptr;  // [layers]
  // Where searches serve several rows, as in CodeSearchArgs, but [layers, due_rows, ...].
  uint32_t* due = nullptr;  // out
  uint32_t *lists = nullptr, *numbers = nullptr;
  int32_t* keys = nullptr;
  uint32_t due_rows = 0, list_capacity = 0, pick_capacity = 0;
};
/// Codes what competes by now and has no code yet, in all layers that are ready; choose_coded()
/// counts it. Also says which rows are due, and lists what the others read.
cudaError_t code_new_keys(const CodeNewKeysArgs& args, cudaStream_t stream);

struct CodeSearchArgs {
  CodedRows rows;
  uint32_t layer = 0, model_layer = 0;
  PagedKv kv;
  const uint32_t* pages = nullptr;  // [count, capacity] page tables of the layer
  uint32_t n_head = 0;
  const __nv_bfloat16* q = nullptr;  // [count, n_head, head_dim] rotated
  float scale = 1.0f, soft_cap = 0.0f;
  bool learns = true;       // queries are the layer's own
  uint32_t* due = nullptr;  // [count] 0: the row need not search; null: all rows search
  uint32_t pick_capacity = 0;
  // Scratch. Tops have four query heads each, 16 bits a head: heads 0 and 2 in x, 1 and 3 in y.
  uint2* tops = nullptr;        // [code_words(group), count, n_kv_head, capacity]
  float2* scales = nullptr;     // [count, n_head] logit = x + y top
  float2* parts = nullptr;      // [code_parts()] largest logit and sum, in units of log2
  float* weights = nullptr;     // [count, n_kv_head, capacity]
  uint32_t* lists = nullptr;    // [count, n_kv_head, list_capacity] out: page ids, in order
  uint32_t* numbers = nullptr;  // as lists, if not null, out: where they stand in the table
  int32_t* keys = nullptr;      // [count, n_kv_head] out: tokens of a list, to the row's own
  uint32_t list_capacity = 0;   // >= capacity
};
/// Words of four query heads.
constexpr uint32_t code_words(uint32_t group) { return group <= 4 ? 1 : group <= 8 ? 2 : 4; }
size_t code_parts(uint32_t max_count, uint32_t n_head, uint32_t n_kv_head);

/// Where the rules' cosine is above -1: rows whose queries have turned away from those that were
/// searched for become due, and queries of rows that are due are kept.
cudaError_t compare_queries(const CodeSearchArgs& args, cudaStream_t stream);
/// Forgets searches of rows that saw keys beyond a length. searched: [layers], see CodedRow.
cudaError_t forget_searches(int32_t* searched, uint32_t layers, int32_t length,
                            cudaStream_t stream);

/// The largest sums of the table entries that the codes of a page's keys name
/// (kernels/code_sums.h), and what softmax divides by. Also adds queries to moments. All but these,
/// due and the last keys is older than the launches ahead in the stream that may not have ended.
/// head_dim 64, 96, 128 or 256; n_head / n_kv_head from 1 to 16; else cudaErrorNotSupported.
cudaError_t score_coded(const CodeSearchArgs& args, cudaStream_t stream);
/// Lists, as KeyLists without slots, of sinks, the pages with the largest sums of softmax weights
/// over the query heads of a KV head, where a page has the weight of its best key, and recent
/// pages. Ties go to the lower page, NaN counts as less than everything. Rows that do not choose
/// list every page; lists of rows that are not due are left as they are.
cudaError_t choose_coded(const CodeSearchArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
