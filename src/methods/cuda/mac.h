// MAC-Attention on a CUDA device; see methods/mac/mac.h.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/address_range.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/mac.h"
#include "kernels/cuda/staged_array.h"
#include "methods/mac/mac.h"

namespace reprise {

/// Rings of all sequences, in the layers where it is asked. They get memory when they are first
/// taken, and keep it for the next owner; addresses never move. A sequence that none is left for
/// takes the one that was unused for longest; who lost it begins with an empty one.
class MacRingPool {
 public:
  using MacRings = kernels::cuda::MacRings;

  /// coded: keeps queries and results as codes of 8 bits. Before reserve().
  void describe(const ModelConfig& config, uint32_t window, bool coded,
                const std::vector<bool>& layers);
  /// Addresses of so many rings at most. kOutOfMemory where there is no memory for the first.
  Status reserve(uint32_t rings);
  /// Of a layer that it has.
  MacRings rings(uint32_t layer) const;
  bool has(uint32_t layer) const { return index_[layer] != kNone; }
  uint64_t ring_bytes() const;
  /// Device memory of all rings.
  uint64_t bytes() const;
  /// That a search of one layer reads.
  uint64_t query_bytes() const { return query_codes() + scales() * sizeof(float); }

  void begin_pass(cudaStream_t stream) {
    stream_ = stream;
    ++pass_;
  }
  /// A ring for the pass, or kNoRing: the pass uses all of them, and there is no memory for more.
  /// owner is told by writing kNoRing there when the ring is taken away.
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
  /// In the order in which session files have them; counters stay.
  enum Kind { kEntries, kGuards, kQueries, kResults, kQueryScales, kResultScales, kCounters };
  static constexpr size_t kKinds = kCounters + 1;
  /// [rings][layers] of one kind.
  struct Array {
    kernels::cuda::AddressRange memory;
    size_t bytes = 0;  // of one ring, all layers

    std::byte* of(uint32_t ring) const { return memory.data() + ring * bytes; }
  };

  /// Whether there was memory for one more ring.
  Result<bool> grow();
  Result<uint32_t> find_ring();
  Status fill(Kind kind, uint32_t ring, int byte) const;
  Status bring(Kind kind, uint32_t ring, void* to) const;
  template <class T>
  T* first(Kind kind, uint32_t layer) const {
    const Array& array = arrays_[kind];
    return reinterpret_cast<T*>(array.memory.data() + array.bytes / layers_ * index_[layer]);
  }
  /// The arrays of session files.
  std::span<const Array> saved() const { return std::span(arrays_).first(kCounters); }
  uint64_t saved_bytes() const;
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
  uint32_t made_ = 0;              // rings that have memory
  std::vector<uint32_t*> owners_;  // [rings]
  std::vector<uint64_t> used_;     // [rings] the last pass
  std::array<Array, kKinds> arrays_;
};

/// Over full attention or a policy whose lists are numbered. Guards of KV heads decide
/// together whether a layer rests. Sequences that get no ring read as without mac.
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
  /// By options.ring_memory. kOutOfMemory where that is less than one takes.
  Result<uint32_t> most_rings(const DeviceRoom& room) const;
  /// Keeps the rings that the steps have from being taken by one another.
  void keep_rings(const DevicePlan& plan);
  /// rows: that leave entries; kNoRing where none is needed yet or left.
  Result<uint32_t> ring_of(const MacPolicy& policy, uint32_t rows);
  Status plan_step(const DevicePlan& plan, uint32_t index);
  /// Rows of a step whose results go to its ring.
  kernels::cuda::PrefillRows seeds_of(const SequenceStep& step, int32_t position) const;

  const ModelConfig& config_;
  MacSettings settings_;
  bool coded_;  // rings
  kernels::cuda::MacRules rules_;
  std::unique_ptr<DevicePolicy> inner_;
  std::shared_ptr<MacRingPool> pool_ = std::make_shared<MacRingPool>();
  std::vector<uint32_t> rings_, sent_;               // [steps] of the pass; of decode rows
  std::vector<kernels::cuda::PrefillRows> seeds_;    // [steps]
  std::vector<uint8_t> follows_;                     // [steps] see MacSeedArgs
  kernels::cuda::StagedArray<uint32_t> sent_rings_;  // [sequences]
  kernels::cuda::StagedArray<kernels::cuda::PrefillRows> sent_seeds_;  // [sequences]
  kernels::cuda::DeviceBuffer<float> seed_out_, seed_lse_;  // [window, n_head, head_dim or 1]
  kernels::cuda::DeviceBuffer<std::byte> workspace_, prefill_workspace_;
};

}  // namespace reprise
