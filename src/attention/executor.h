// Runs attention on the CPU: stores KV, asks the policy what to read, reads it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/pager.h"
#include "attention/plan.h"
#include "attention/rotation.h"
#include "attention/step_cost.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "model/model.h"

namespace reprise {

/// A row's result depends only on its own sequence, position and phase, not on the rows beside it.
class CpuExecutor : public AttentionOp {
 public:
  /// ropes: [n_layer] the rotary table of each layer. Everything must outlive the executor.
  CpuExecutor(const ModelConfig& config, std::span<const RopeTable* const> ropes, ThreadPool& pool,
              Prefetch prefetch = Prefetch::kNone);

  /// Sets the rows of the next forward pass; both spans must live until it ends.
  void begin(std::span<const Row> rows, std::span<const SequenceStep> steps);
  /// Errors: kUnsupported when a policy selects a key whose page it has evicted; those of
  /// PagePool::fetch.
  Status attend(uint32_t layer, float* q, float* k, float* v, float* out) override;
  /// Stores keys and values as attend() does, and reads nothing.
  Status store(uint32_t layer, const float* q, float* k, const float* v);

  /// Cost of a step of the pass so far.
  const StepCost& cost(size_t step) const { return costs_[step]; }

 private:
  // Per thread and KV head. A line of two threads would change hands all the time.
  struct alignas(64) Scratch {
    std::vector<float> q;                     // [rows, heads, head_dim] rotated elsewhere
    std::vector<float> lse;                   // [rows, heads]
    std::vector<float> more_out, more_lse;    // the same, of the second and later reads
    std::vector<float> cos_sin;               // [pairs][2]
    std::vector<int32_t> row_begin, row_end;  // [rows, heads]
    std::vector<kernels::PageSpan> pages;
    std::vector<kernels::PageSpan> next;        // the first of what comes after
    std::vector<float> logits;                  // [heads, pages, 16] where shares are asked for
    std::vector<kernels::AttendArgs> together;  // of a group, in the first of a thread
    std::vector<std::byte> kernel;
  };
  struct SharedPages {            // of a job
    uint32_t first = 0;           // in PageShares::pages
    std::vector<float> of_heads;  // [heads, pages] of what the job reads
  };
  struct Call {  // the layer being computed
    uint32_t layer;
    const float* q;
    float* out;
  };
  struct Result {
    float *out, *lse;  // [rows, heads, head_dim], [rows, heads]
    size_t stride;     // floats between rows of out
  };

  Status hold_and_store(uint32_t layer, const float* q, float* k, const float* v);
  Status compute(uint32_t layer, const float* q, float* out);
  void rotate_and_store(uint32_t layer, const float* q, float* k, const float* v);
  /// Brings closer the pages to which few rows' tokens of a layer will go.
  void fetch_written(uint32_t layer) const;
  /// Lists which rows each task stores: those of a page are of one task, since its tokens are
  /// stored one after the other.
  void list_store_tasks();
  const SequenceStep& step_of(size_t row) const { return steps_[row_steps_[row]]; }
  QueryRows query_rows(uint32_t layer, size_t step, const float* q, size_t steps = 1) const;
  /// Lets the policy of steps of one sequence look at all of them, where `step` is the first.
  Status foresee(uint32_t layer, size_t step, const float* q);
  Status select(uint32_t layer, const float* q);
  // Selection::shares; each job pools the logits that it has just computed.
  Status list_shares(size_t step, size_t first_job);
  void pool_shares(const AttentionJob& job, const Scratch& scratch, const float* lse);
  void weigh_pieces(const PieceMerge& merge);
  void join_heads(size_t job) const;
  void finish_shares();
  /// Lists which jobs run one after the other on a thread: those of KV heads that read the same
  /// keys, which lie side by side, where there are enough of them for the threads.
  void group_jobs();
  Result result_of(const Call& call, const AttentionJob& job, Scratch& scratch);
  size_t first_of(const AttentionJob& job) const {  // among values of all rows' heads
    return (size_t{job.row} * config_.n_head + job.head) * config_.head_dim;
  }
  void run(const Call& call, const AttentionJob& job, Scratch& scratch);
  /// The same bits, jobs of a group.
  void run_together(const Call& call, std::span<const AttentionJob> jobs,
                    std::span<Scratch> scratch);
  kernels::AttendArgs args_of(const Call& call, const AttentionJob& job, const KeyRead& read,
                              Scratch& scratch, const Result& result);
  /// Reads of a job: one, or all of those that are joined.
  void read(const Call& call, const AttentionJob& job, std::span<const KeyRead> reads,
            Scratch& scratch, const Result& result);
  /// Those that a part moves to other positions.
  void move_queries(const Call& call, const AttentionJob& job, const SelectionPart& part,
                    Scratch& scratch) const;
  void gather_next(uint32_t layer, const AttentionJob& job, size_t together,
                   Scratch& scratch) const;
  void add_pages(uint32_t layer, const AttentionJob& job, const KeyRead& read, size_t most,
                 std::vector<kernels::PageSpan>& pages) const;
  void gather_same_pages(const AttentionJob& other, std::span<const kernels::PageSpan> of_other,
                         const AttentionJob& job, std::vector<kernels::PageSpan>& pages) const;
  void use_mean_values(float* out) const;
  void tell_policies(uint32_t layer, const float* q, const float* out, double attend_ms);
  /// Adds what is known already to a job's results in place, and keeps lse.
  void finish(const Call& call, const AttentionJob& job, const float* lse);
  void merge_pieces(const Call& call, const PieceMerge& merge);
  void sum_pieces(const PieceMerge& merge, uint32_t first, uint32_t last, uint32_t head, float* out,
                  float* lse) const;
  void capture(const PieceMerge& merge, uint32_t head);

  const ModelConfig& config_;
  ThreadPool& pool_;
  RotationCache rotation_;
  AttentionPlan plan_;
  Pager pager_;
  std::span<const Row> rows_;
  std::span<const SequenceStep> steps_;
  std::vector<uint32_t> row_steps_;        // [rows]
  std::vector<size_t> store_tasks_;        // the first row of each, and the end
  std::vector<Selection> selections_;      // [steps]
  std::vector<StepCost> costs_;            // [steps]
  std::vector<StepCost> before_;           // [steps] before the layer being computed
  std::vector<Scratch> scratch_;           // [threads, n_kv_head]
  std::vector<uint32_t> groups_;           // the first job of each, and the end
  std::vector<float> q_rotated_;           // [rows, n_head, head_dim]
  std::vector<float> lse_;                 // [rows, n_head]
  std::vector<SharedPages> shared_pages_;  // [jobs]
  std::vector<float> share_factors_;       // [partials] of a piece's shares in those of all
  std::vector<double> shares_ms_;          // [jobs]
  std::vector<float> partial_out_;         // [partials, head_dim]
  std::vector<float> partial_lse_;         // [partials]
};

}  // namespace reprise
