// What one device does of every pass: the whole model's, or its share.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "attention/cuda/device_executor.h"
#include "engine/backend.h"
#include "engine/cuda/pass_inputs.h"
#include "engine/cuda/pass_tables.h"
#include "engine/cuda/step_graph.h"
#include "fusion/cuda/cuda_fusion.h"
#include "kernels/cuda/communicator.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/sampling.h"
#include "kv/cuda/device_page_memory.h"
#include "model/cuda/device_model.h"
#include "reprise/progress.h"

namespace reprise {

/// Passes that may be under way; they have turns 0 and 1.
inline constexpr uint32_t kPassTurns = 2;

/// What is decided about a pass once for all ranks.
struct PassPlan {
  std::vector<const Policy*> acting;  // [steps] whose device side chooses the keys
  bool timed = false;
};

/// Works on the device that is current where create() is called; every call but the destructor's
/// needs it to be current. Ranks that share a model get the same calls with the same passes.
class CudaRank {
 public:
  /// communicator: null where there is one rank only. Errors: those of DeviceModel.
  static Result<std::unique_ptr<CudaRank>> create(
      const Model& model, std::unique_ptr<kernels::cuda::Communicator> communicator,
      ThreadPool& pool, const EngineOptions& options, kernels::cuda::KvType kv_type,
      const ProgressFn& progress);
  ~CudaRank();

  /// Of every page, its KV heads; the result outlives this object's passes.
  size_t page_bytes() const;
  struct Pages {
    uint64_t device = 0, host = 0, hot = 0;
    Prefetch prefetch = Prefetch::kNone;
  };
  Result<std::unique_ptr<DevicePageMemory>> make_pages(const Model& model, const Pages& room);
  /// Adds a policy for the passes from now on.
  Status prepare(const Policy& policy);
  /// Enqueues a first exchange with the other ranks, which connects them.
  Status connect(uint32_t turn);

  /// Brings tables and inputs up to date; may wait for earlier passes, and allocate.
  Status send(const ForwardPass& pass, const PassPlan& plan, uint32_t turn);
  /// Enqueues the pass that was sent.
  Status start(const ForwardPass& pass, uint32_t turn);
  /// Ends what waits for other ranks; no pass can follow.
  void abort();

  const kernels::cuda::CudaEvent& computed(uint32_t turn) const { return computed_[turn]; }
  /// How long the pass of a turn took that was timed and is computed.
  Result<double> pass_ms(uint32_t turn) const { return timed_[turn][1].ms_since(timed_[turn][0]); }
  /// Of the pass that had this turn; what this rank knows is what all know.
  std::span<float> logits(uint32_t turn, size_t result) const;
  int32_t token(size_t result, int32_t position) const {
    return chosen_staged_.data()[result * 2 + static_cast<size_t>(position) % 2];
  }
  const DevicePolicy* policy(const Policy& policy) const;
  /// What computes fused prompts in turn with passes; this object outlives its users.
  DeviceParts fusion_parts(const Model& model, ThreadPool& pool);

 private:
  /// What a captured pass depends on: rows, rows of the page tables, tokens of history, whether
  /// tokens are chosen, policies.
  using GraphKey = std::tuple<uint32_t, uint32_t, uint32_t, bool, std::vector<DeviceGroup>>;

  explicit CudaRank(const ModelConfig& config) : tables_(config.n_layer) {}
  Status reserve();
  DeviceRoom room() const;
  /// Tells the executor of all policies, and of how long page tables are.
  Status set_policies();
  /// Of policies and the executor, for tables as long as they are now.
  Status make_room();
  Status update_tables(const ForwardPass& pass, uint32_t turn);
  void group_steps(const ForwardPass& pass, const PassPlan& plan);
  Status plan_policies(const ForwardPass& pass, const PassPlan& plan, uint32_t turn);
  Status enqueue(const ForwardPass& pass, uint32_t turn);
  Status enqueue_rows(const DeviceRows& rows, uint32_t results);
  DeviceRows device_rows(const ForwardPass& pass) const;
  kernels::cuda::SampleArgs sample_args(const DeviceRows& rows, uint32_t results) const;

  // Captured exchanges are destroyed before what they go through.
  std::unique_ptr<kernels::cuda::Communicator> communicator_;
  kernels::cuda::CudaStream stream_;
  DevicePageMemory* memory_ = nullptr;  // of the pool
  kernels::cuda::PagedKv kv_;
  uint64_t pool_pages_ = 0;
  uint32_t max_rows_ = 0, max_results_ = 0;
  std::unique_ptr<DeviceModel> model_;
  std::unique_ptr<DeviceExecutor> executor_;
  PassTables tables_;
  bool has_room_ = false;  // policies and the executor, for tables as long as these
  PassInputs inputs_;
  kernels::cuda::DeviceBuffer<float> logits_;                     // [results, vocab]
  kernels::cuda::PinnedBuffer<float> logits_staged_[kPassTurns];  // the same
  kernels::cuda::DeviceBuffer<int32_t> chosen_;                   // [results] of prefill passes
  kernels::cuda::PinnedBuffer<int32_t> chosen_staged_;            // [results][position % 2]
  kernels::cuda::DeviceBuffer<std::byte> sample_workspace_;
  kernels::cuda::CudaEvent computed_[kPassTurns];
  kernels::cuda::CudaEvent timed_[kPassTurns][2];  // before and after passes that are timed
  std::map<GraphKey, StepGraph> graphs_;           // of decode-only passes
  std::map<std::string, std::unique_ptr<DevicePolicy>, std::less<>> policies_;  // by Policy::spec
  // Of the pass that was sent last.
  uint32_t decode_rows_ = 0;
  bool samples_ = false, wants_logits_ = false, is_timed_ = false;
  std::vector<DeviceGroup> groups_;
  std::vector<kernels::cuda::PrefillRows> prefill_;
};

}  // namespace reprise
