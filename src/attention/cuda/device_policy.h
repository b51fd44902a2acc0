// The side of a policy that runs on a CUDA device: chooses keys by kernels, inside captured steps.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "attention/plan.h"
#include "kernels/cuda/key_spans.h"
#include "kernels/cuda/page_bounds.h"
#include "kernels/cuda/paged_decode.h"
#include "kernels/cuda/paged_prefill.h"
#include "model/config.h"
#include "reprise/error.h"

namespace reprise {

class DevicePolicy;
class PositionFreeKeys;

/// What products of rotated queries and keys are in units of: log2. Queries on the device are
/// scaled to that before they are rounded to bf16, as the CPU scales its own, so that both round
/// the same.
inline constexpr float kQueryUnit = 0.69314718f;

/// Consecutive steps of a pass that share a policy.
struct DeviceGroup {
  uint32_t first = 0, count = 0;   // steps
  DevicePolicy* policy = nullptr;  // null: everything is read
  uint64_t variant = 0;            // DevicePolicy::variant()

  friend auto operator<=>(const DeviceGroup&, const DeviceGroup&) = default;
};

/// Rows without a policy whose keys are stored without position.
struct UnrotatedRows {
  const PositionFreeKeys* keys = nullptr;  // what they are read with; null: keys are rotated
  uint32_t first_page = 0;  // what is before it was copied for rows before these, in each layer
  uint32_t end = 0;         // of the keys that prefill rows read
};

/// The rows of a pass as the device sees them; decode rows come first, one of a sequence.
struct DeviceRows {
  uint32_t rows = 0, decode_rows = 0;
  const int32_t* positions = nullptr;   // [rows]
  const uint32_t* sequences = nullptr;  // [rows] row of the page tables; of decode row i it is i
  uint32_t prefill_steps = 0;  // sequence i of them has row decode_rows + i of the page tables
  const kernels::cuda::PrefillRows* prefill = nullptr;  // [prefill_steps], rows from decode_rows on
  const uint32_t* tables = nullptr;  // [n_layer, table_rows, capacity] page tables
  uint32_t table_rows = 0, capacity = 0;
  std::span<const DeviceGroup> groups;  // of all steps, decode and prefill ones apart
  std::span<const kernels::cuda::PrefillRows> host_prefill;  // prefill, on the host
  // Prefill rows stand at any ascending positions and read everything; no policy learns of them.
  bool scattered = false;
  bool far_pages = false;  // some of them may lie in the host's memory
  UnrotatedRows unrotated;

  const uint32_t* table(uint32_t layer) const {
    return tables + size_t{layer} * table_rows * capacity;
  }
};

/// A pass as the host knows it, before anything of it is enqueued.
struct DevicePlan {
  std::span<const Row> rows;
  std::span<const SequenceStep> steps;
  std::span<const DeviceGroup> groups;
  std::span<const Policy* const> acting;  // [steps] the host's side of what chooses the keys
  uint32_t decode_rows = 0;
  uint32_t turn = 0;  // 0 and 1 in turns; the pass that had it before is finished
};

/// Decode rows of one layer, one of a sequence, that share a policy.
struct DeviceQueries {
  uint32_t layer = 0, n_head = 0;
  uint32_t first = 0, count = 0;       // rows of the pass
  const int32_t* positions = nullptr;  // [count]
  const int32_t* keys = nullptr;       // [count] that full attention reads
  const uint32_t* pages = nullptr;     // [count, capacity] page tables of the layer
  uint32_t capacity = 0;
  const __nv_bfloat16* q = nullptr;  // [count, n_head, head_dim] rotated, in kQueryUnit
  const float* lse = nullptr;        // [count, n_head] natural log, over what was read: for learn()
  uint32_t layer_rows = 0;           // of lse, from one layer's to the next one's
  size_t page_stride = 0;            // the same, elements of pages
  // For policies that attend: in float; where they are asked for: before rotation and scaling.
  const float *q_exact = nullptr, *q_plain = nullptr;
  kernels::cuda::PositionAngles angles;  // up to most_rotated_keys(), where keys are packed
  kernels::cuda::PagedKv kv;
  bool guess = false;  // queries are those of the layer before: only lists are wanted
};

/// Attention of decode rows.
struct DeviceResult {
  float* out = nullptr;  // [count, n_head, head_dim] normalised
  float* lse = nullptr;  // [count, n_head]
};

/// Prefill rows of one layer and step, and what was computed for them.
struct DevicePrompt {
  uint32_t layer = 0, step = 0;
  kernels::cuda::PrefillRows rows;
  const int32_t* positions = nullptr;  // [rows.count]
  const uint32_t* pages = nullptr;     // [capacity] page table of the sequence
  uint32_t capacity = 0;
  const __nv_bfloat16* q = nullptr;      // [rows.count, n_head, head_dim] likewise
  const float* q_plain = nullptr;        // the same before rotation, where it is asked for
  const float* lse = nullptr;            // [rows.count, n_head], after they were computed
  kernels::cuda::PositionAngles angles;  // as DeviceQueries
  kernels::cuda::PagedKv kv;
};

/// Position-free keys that prefill rows read as if nothing lay between them. What it points to
/// stays until the next such read.
struct PackedPrompt {
  const int32_t* tokens = nullptr;  // [*keys] their positions; null: everything is read
  const int32_t* keys = nullptr;
  uint32_t most_keys = 0;
  const kernels::cuda::PrefillRows* rows = nullptr;  // the rows where they stand among the keys
  const __nv_bfloat16* q = nullptr;  // [count, n_head, head_dim] rotated so, in kQueryUnit
};

/// Keys that prefill rows read: [max(first_key, position - window + 1), min(end_key, position +
/// 1)).
struct PrefillPart {
  const uint32_t* pages = nullptr;  // in these; null: in those of the sequence
  int32_t first_key = 0, end_key = std::numeric_limits<int32_t>::max();
  int32_t window = 0;   // 0: no bound
  bool capped = false;  // queries stand at max_query_position() at most
};

/// Keys to read. What lists point to stays until the next select() of the layer or reserve().
struct DeviceRead {
  kernels::cuda::KeyLists lists;
  const uint32_t* numbers = nullptr;     // as lists.pages, if asked for: see MacArgs
  uint32_t capped_pages = 0;             // the first of every list, for queries as in PrefillPart
  bool rotate = false;                   // keys are position-free
  const uint32_t* angle_rows = nullptr;  // then, KeyAngles::rows of DeviceQueries::angles
  const float* q = nullptr;              // [count, n_head, head_dim] in place of the rows' own
  /// Lists, and the pages that they name but the last of each, are older than the layer's queries.
  bool known = false;
  /// What learn() is to know of pages, as PagedDecodeArgs::page_logs, and of their best keys alone.
  float* page_logs = nullptr;
  bool page_peaks = false;
};

/// A decode row in one layer, for the counters.
struct DeviceRow {
  Policy* policy = nullptr;  // the host's side
  uint32_t layer = 0;
  int32_t position = 0;
};

/// Memory that a policy may count on.
struct DeviceRoom {
  uint32_t sequences = 0;   // of a step
  uint32_t capacity = 0;    // pages of a sequence
  uint64_t pool_pages = 0;  // page ids are smaller
};

/// One object serves every sequence with the same options. What belongs to keys is kept by page id,
/// so that forks and shared prefixes need nothing; what belongs to a sequence hangs at the host's
/// side of its policy. Everything is enqueued: nothing is waited for, and nothing is allocated but
/// in reserve() and plan().
class DevicePolicy {
 public:
  using PagedKv = kernels::cuda::PagedKv;
  virtual ~DevicePolicy() = default;

  /// Makes room before steps that need it; called again when a capacity grows.
  virtual Status reserve(const DeviceRoom&) { return {}; }
  /// Takes in pages whose keys were not stored by passes since the last call: what there is after
  /// the first reserve(), then what was moved there or read from a file.
  virtual Status adopt(const PagedKv&, const kernels::cuda::PageIds&, cudaStream_t) { return {}; }
  /// Of passes with steps of its own, outside of what is captured.
  virtual Status plan(const DevicePlan&, cudaStream_t) { return {}; }
  /// What the kernels of a group of decode rows depend on beside the rows and policies of their
  /// pass, once it is planned: steps are captured for each value.
  virtual uint64_t variant(const DeviceGroup&) const { return 0; }
  /// Of every pass, whatever policies its sequences have, before its layers: what they share.
  virtual Status begin(const DeviceRows&, const PagedKv&, cudaStream_t) { return {}; }
  /// Of every pass with prefill rows and layer without a window of its own: their keys are stored.
  virtual Status after_prefill_store(const DeviceRows&, uint32_t /*layer*/, const PagedKv&,
                                     cudaStream_t) {
    return {};
  }
  /// Whether keys of its sequences are stored as they are and rotated when read: key i of a list
  /// stands at position i then, and prefill rows read everything, or what pack() says.
  virtual bool position_free() const { return false; }
  /// Whether rows may read position-free keys as if nothing lay between them.
  virtual bool packs() const { return false; }
  /// Position-free keys that a row reads at most in layers that it does not leave alone.
  virtual uint32_t most_rotated_keys() const { return std::numeric_limits<uint32_t>::max(); }
  /// What prefill rows of a step read, whose keys are stored. packed arrives empty.
  virtual Status pack(const DevicePrompt&, PackedPrompt& /*packed*/, cudaStream_t) { return {}; }
  /// read arrives as a read of everything.
  virtual Status select(const DeviceQueries&, DeviceRead& /*read*/, cudaStream_t) { return {}; }
  /// Whether select() names whole pages of the sequence, for each KV head and in order, the row's
  /// own last. It may be asked about the layer to come with the queries of this one
  /// (DeviceQueries::guess), while this layer's numbers of keys are still in use.
  virtual bool chooses_pages() const { return false; }
  /// Whether select() names what begin() chose, of rows that decode: it may be asked before the
  /// layers, with queries that are not there yet.
  virtual bool chooses_early(const DeviceGroup&, uint32_t /*layer*/) const { return false; }
  /// Whether it wants to know what decode rows read. learn() is told about so many layers from that
  /// of the queries on, beside what follows of the pass. predict(), if it is asked then, names what
  /// the next row will read in as many layers, kPredictedLayers at most from a multiple of it on,
  /// but for its last page.
  virtual bool learns() const { return false; }
  static constexpr uint32_t kPredictedLayers = 8;
  /// At most. Each time the pass is let go of and waited for; what takes long is better begun
  /// early.
  virtual uint32_t layers_learned_together() const { return std::numeric_limits<uint32_t>::max(); }
  virtual Status learn(const DeviceQueries&, uint32_t /*layers*/, cudaStream_t) { return {}; }
  virtual Status predict(const DeviceQueries&, std::span<DeviceRead> /*layers*/, cudaStream_t) {
    return {};
  }
  /// Whether it computes decode rows itself: attend() is called in place of select().
  virtual bool attends() const { return false; }
  /// Whether it asks for queries before rotation.
  virtual bool reads_plain_queries() const { return attends(); }
  virtual Status attend(const DeviceQueries&, const DeviceResult&, cudaStream_t) { return {}; }
  /// What prefill rows of a step read from a position on; empty: everything. Parts are disjoint,
  /// and every row sees a key of each.
  virtual std::vector<PrefillPart> prefill_parts(uint32_t /*layer*/, uint32_t /*step*/,
                                                 int32_t /*position*/) const {
    return {};
  }
  virtual Status after_prefill(const DevicePrompt&, cudaStream_t) { return {}; }
  /// Where rows further right stand for keys that are read capped; see SelectionPart.
  virtual int32_t max_query_position() const { return std::numeric_limits<int32_t>::max(); }
  /// Keys of each KV head that a row reads; and bytes of own structures, for all KV heads together,
  /// to choose them.
  virtual uint64_t keys_read(const DeviceRow& row) const = 0;
  virtual uint64_t index_bytes_read(const DeviceRow&) const { return 0; }

  /// Layers, [n_layer] or empty, in which everything is read and it is not asked.
  bool leaves_alone(uint32_t layer) const { return !left_alone_.empty() && left_alone_[layer]; }
  bool leaves_any_alone() const {
    return std::find(left_alone_.begin(), left_alone_.end(), true) != left_alone_.end();
  }
  virtual void leave_alone(std::vector<bool> layers) { left_alone_ = std::move(layers); }

 private:
  std::vector<bool> left_alone_;
};

}  // namespace reprise
