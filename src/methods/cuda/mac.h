// MAC-Attention on a CUDA device; see methods/mac/mac.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/mac.h"
#include "methods/mac/mac.h"

namespace reprise {

/// Rings of all sequences, in the layers where it is asked. A sequence that none is left for takes
/// the one that was unused for longest; who lost it begins with an empty one.
class MacRingPool {
 public:
  using MacRings = kernels::cuda::MacRings;

  /// coded: keeps queries and results as codes of 8 bits.
  Status reserve(const ModelConfig& config, uint32_t window, bool coded,
                 const std::vector<bool>& layers, uint32_t rings);
  /// Of a layer that it has.
  MacRings rings(uint32_t layer) const;
  bool has(uint32_t layer) const { return index_[layer] != kNone; }
  uint64_t ring_bytes() const;
  /// That a search of one layer reads.
  uint64_t query_bytes() const { return query_codes() + scales() * sizeof(float); }

  void begin_pass(cudaStream_t stream) {
    stream_ = stream;
    ++pass_;
  }
  /// A ring for the pass; owner is told by writing kNoRing there when the ring is taken away.
  Result<uint32_t> take(uint32_t* owner);
  void use(uint32_t ring) { used_[ring] = pass_; }
  void release(uint32_t ring) { owners_[ring] = nullptr; }
  Status copy(uint32_t from, uint32_t to) const;
  /// Positions from one on.
  Status forget(uint32_t ring, int32_t position) const;
  /// See MacDeviceRing.
  Result<std::vector<int32_t>> positions(uint32_t ring) const;
  Result<std::vector<std::byte>> fetch(uint32_t ring) const;
  /// Takes up what fetch() gave; of bytes that cannot be that the ring stays empty.
  Status adopt(uint32_t ring, std::span<const std::byte> bytes) const;

  std::vector<MacSums> sums(uint32_t ring) const;
  void clear_sums(uint32_t ring) const;

 private:
  static constexpr uint32_t kNone = ~0u;
  /// body(array) for what a ring holds of each array, its entries first.
  template <class Body>
  Status for_arrays(Body&& body) const;
  uint64_t saved_bytes() const {
    return ring_bytes() + uint64_t{layers_} * n_kv_head_ * sizeof(kernels::cuda::MacGuardState);
  }
  bool can_be(std::span<const kernels::cuda::MacEntry> entries) const;
  // Of one ring and layer.
  size_t entries() const { return size_t{n_head_} * window_; }
  size_t scales() const { return coded_ ? entries() * head_dim_ / 32 : 0; }
  size_t query_codes() const { return entries() * head_dim_ * (coded_ ? 1 : 2); }
  size_t result_codes() const { return entries() * head_dim_ * (coded_ ? 1 : 4); }

  uint32_t n_head_ = 0, n_kv_head_ = 0, head_dim_ = 0, window_ = 0;
  bool coded_ = false;
  std::vector<uint32_t> index_;  // [n_layer] of the arrays' layers
  uint32_t layers_ = 0;
  cudaStream_t stream_ = nullptr;
  uint64_t pass_ = 0;
  std::vector<uint32_t*> owners_;                                 // [rings]
  std::vector<uint64_t> used_;                                    // [rings] the last pass
  kernels::cuda::DeviceBuffer<std::byte> q_, out_;                // [layers] as MacRings
  kernels::cuda::DeviceBuffer<float> q_scales_, out_scales_;      // likewise, or empty
  kernels::cuda::DeviceBuffer<kernels::cuda::MacEntry> entries_;  // likewise
  kernels::cuda::DeviceBuffer<kernels::cuda::MacGuardState> guards_;
  kernels::cuda::DeviceBuffer<kernels::cuda::MacCounters> counters_;
};

/// Over full attention or a policy whose lists are numbered. Guards of KV heads decide
/// together whether a layer rests.
class DeviceMac : public DevicePolicy {
 public:
  /// inner: what is read where nothing is reused; null: everything.
  DeviceMac(const MacPolicy& policy, const ModelConfig& config,
            std::unique_ptr<DevicePolicy> inner);

  Status reserve(const DeviceRoom& room) override;
  Status adopt(const PagedKv& kv, const kernels::cuda::PageIds& pages,
               cudaStream_t stream) override;
  Status begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) override;
  Status after_prefill_store(const DeviceRows& rows, uint32_t layer, const PagedKv& kv,
                             cudaStream_t stream) override;
  Status plan(const DevicePlan& plan, cudaStream_t stream) override;
  uint64_t variant(const DeviceGroup& group) const override;
  bool attends() const override { return true; }
  Status attend(const DeviceQueries& queries, const DeviceResult& result,
                cudaStream_t stream) override;
  /// Fills the ring by the last rows of a prompt.
  Status after_prefill(const DevicePrompt& prompt, cudaStream_t stream) override;
  /// At most: what was reused is counted on the device.
  uint64_t keys_read(const DeviceRow& row) const override;
  uint64_t index_bytes_read(const DeviceRow& row) const override;
  void leave_alone(std::vector<bool> layers) override;

 private:
  /// Groups as the inner policy knows them.
  std::vector<DeviceGroup> inner_groups(std::span<const DeviceGroup> groups) const;
  Result<uint32_t> ring_of(const MacPolicy& policy);
  /// Rows of a step whose results go to its ring.
  kernels::cuda::PrefillRows seeds_of(const SequenceStep& step, int32_t position) const;

  const ModelConfig& config_;
  MacSettings settings_;
  bool coded_;  // rings
  kernels::cuda::MacRules rules_;
  std::unique_ptr<DevicePolicy> inner_;
  std::shared_ptr<MacRingPool> pool_ = std::make_shared<MacRingPool>();
  std::vector<uint32_t> rings_, sent_;             // [steps] of the pass; of decode rows
  std::vector<kernels::cuda::PrefillRows> seeds_;  // [steps]
  kernels::cuda::PinnedBuffer<uint32_t> staged_rings_[2];
  kernels::cuda::PinnedBuffer<kernels::cuda::PrefillRows> staged_seeds_[2];
  kernels::cuda::DeviceBuffer<uint32_t> device_rings_;                    // [sequences]
  kernels::cuda::DeviceBuffer<kernels::cuda::PrefillRows> device_seeds_;  // [sequences]
  kernels::cuda::DeviceBuffer<float> seed_out_, seed_lse_;  // [window, n_head, head_dim or 1]
  kernels::cuda::DeviceBuffer<std::byte> workspace_, prefill_workspace_;
};

}  // namespace reprise
