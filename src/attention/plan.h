// From selections to jobs: what each task of the executor's parallel region reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/policy.h"
#include "model/config.h"

namespace reprise {

/// Rows of one sequence in a forward pass: consecutive rows of the batch. Rows that choose apart
/// what they read are steps of their own, one after the other.
struct SequenceStep {
  SequenceKv* kv = nullptr;  // reserved for every row's position
  Policy* policy = nullptr;
  uint32_t first_row = 0, rows = 0;
  kernels::Phase phase = kernels::Phase::kDecode;
  int32_t prompt_end = 0;                // tokens of the prompt
  const ProgressFn* progress = nullptr;  // see QueryRows
};

inline constexpr uint32_t kNoBias = ~0u;

/// Some slots of one page of a sequence, or of a policy's side pages.
struct KeyBlock {
  uint32_t index;
  uint16_t slots;           // bit t: slot t
  int32_t position = 0;     // where slot 0 is read; may be left of 0
  uint32_t bias = kNoBias;  // where its 16 biases stand in the plan
};

/// Blocks of one selection part.
struct KeyRead {
  const SelectionPart* part = nullptr;
  uint32_t first_block = 0, blocks = 0;
};

/// Where joined reads have the keys of side pages: left of every key of a sequence.
inline constexpr int32_t kBeforeKeys = -(1 << 28);

/// Query heads [head, head + heads), all of one KV head, of rows [row, row + rows): the merged
/// result of all reads.
struct AttentionJob {
  uint32_t step = 0, row = 0, rows = 0, head = 0, heads = 0;
  uint32_t first_read = 0, reads = 0;
  bool joined = false;   // its reads, of side pages and the sequence's, can be one list of pages
  uint32_t partial = 0;  // first (row, head) of its result in the partial buffer, or kDirect
};

/// Pieces of one key list, whose partial results are merged in order into the output.
struct PieceMerge {
  uint32_t step = 0, row = 0, head = 0, heads = 0;
  uint32_t partial = 0, pieces = 0;
  uint32_t captured = 0;  // the first pieces, of captured parts
};

/// Decode splits the keys of every row into equal pieces, by the length of the list alone, so that
/// threads share long lists and a result never depends on their number: more and longer ones as it
/// grows, since each costs a thread a microsecond or two, and from three on a multiple of four,
/// which two or four threads share without waiting. Prefill splits rows into tiles.
class AttentionPlan {
 public:
  static constexpr uint32_t kDirect = ~0u;
  static constexpr uint32_t kTileRows = 64;  // half of it where that is all
  static constexpr uint32_t kPieceBlocks = 32, kFewPieces = 8;

  explicit AttentionPlan(const ModelConfig& config);

  void clear();
  /// Adds the jobs of one step. Those of decode steps that read every key, as they did in the same
  /// order before clear(), stay as they are: other threads' caches have them, and most layers need
  /// the same. Errors: kUnsupported when selection names an evicted key or captures prefill rows.
  Status add(uint32_t layer, uint32_t index, const SequenceStep& step, std::span<const Row> rows,
             const Selection& selection);

  /// Whether all is as it was before clear().
  bool kept() const { return !changed_ && kept_ == added_.size(); }
  std::span<const AttentionJob> jobs() const { return std::span(jobs_).first(end_.jobs); }
  std::span<const PieceMerge> merges() const { return std::span(merges_).first(end_.merges); }
  std::span<const KeyRead> reads(const AttentionJob& job) const {
    return std::span(reads_).subspan(job.first_read, job.reads);
  }
  std::span<const KeyBlock> blocks(const KeyRead& read) const {
    return std::span(blocks_).subspan(read.first_block, read.blocks);
  }
  /// [16] what is added to the logits of a block's slots, or null.
  const float* bias(const KeyBlock& block) const {
    return block.bias == kNoBias ? nullptr : &biases_[block.bias];
  }
  /// (row, head) results that jobs write into the partial buffer.
  size_t partials() const { return end_.partials; }
  /// Keys that decode rows read, summed over KV heads; and the page tiles they lie in.
  uint64_t decode_keys() const { return end_.decode_keys; }
  uint64_t decode_pages() const { return end_.decode_pages; }

 private:
  struct BlockList {
    uint32_t first = 0, count = 0, keys = 0;
  };
  struct End {  // of what steps have added
    size_t biases = 0, blocks = 0, reads = 0, jobs = 0, merges = 0, partials = 0;
    uint64_t decode_keys = 0, decode_pages = 0;
  };
  struct Added {  // by a step
    bool can_stay;
    uint32_t index, row;
    KeyRange seen;
    BlockList list;
    End end;
  };
  struct Target {  // what is being planned
    uint32_t layer, index;
    const SequenceStep* step;
    std::span<const SelectionPart> parts;
    bool per_query_head;
    bool captures;
  };
  Status build(const Target& target, std::span<const Row> rows);
  void drop_rest();
  Status check_pages(const Target& target, const SelectionPart& part, BlockList list) const;
  /// Keys that rows at positions [first, last] can see of a part.
  KeyRange visible(uint32_t layer, const SelectionPart& part, int32_t first, int32_t last) const;
  BlockList append_blocks(const SelectionPart& part, size_t list, KeyRange visible);
  /// Returns the first block of them, which may be the last there was of the list's.
  size_t append_range(KeyRange keys, int32_t shift, size_t list);
  void append_bias(std::span<const float> bias, int32_t first_key, KeyBlock& block);
  BlockList restrict(BlockList list, KeyRange visible) const;
  /// lists_[group * parts + part] for every head group, over keys of rows [first, last].
  Status build_lists(const Target& target, int32_t first, int32_t last);
  void add_decode_row(const Target& target, uint32_t row);
  void add_pieces(const Target& target, size_t part, BlockList list, AttentionJob job,
                  PieceMerge& merge);
  void count_decode_keys(const Target& target, uint32_t group);
  void add_prefill_tiles(const Target& target, std::span<const Row> rows);
  bool can_join(uint32_t layer, const AttentionJob& job) const;
  AttentionJob head_job(const Target& target, uint32_t group) const;

  const ModelConfig& config_;
  std::vector<SelectionPart> everything_;  // one part with every key
  std::vector<BlockList> lists_;
  std::vector<KeyBlock> union_;  // of query heads that share a KV head
  std::vector<KeyBlock> blocks_;
  std::vector<float> biases_;  // [blocks with bias, 16]
  std::vector<KeyRead> reads_;
  std::vector<AttentionJob> jobs_;
  std::vector<PieceMerge> merges_;
  std::vector<Added> added_;  // the first kept_ of them since clear()
  size_t kept_ = 0;
  bool changed_ = true;  // something was added anew since clear()
  End end_;
};

}  // namespace reprise
