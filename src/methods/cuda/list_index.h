// Device memory of CSAttention's lists of keys; see methods/csattention/centroid_lists.h.
#pragma once

#include <vector>

#include "kernels/cuda/centroid_lists.h"
#include "kernels/cuda/device_buffer.h"
#include "methods/csattention/csattention.h"
#include "methods/cuda/indexed_layers.h"

namespace reprise {

/// The index of a sequence; its memory is its own, since lists outgrow the KV.
class DeviceListIndex : public CsAttentionOnDevice {
 public:
  struct Layer {
    int32_t built = 0;    // as KeyIndex::built_end()
    int32_t listed = 0;   // end of the keys that lists were offered
    int32_t seen = 0;     // end of the rows among which samples were taken; 0 = none
    int32_t sampled = 0;  // rows of samples
  };

  /// places: [n_layer] of the layers' places in it, IndexedLayers::kNone where they have none.
  DeviceListIndex(const kernels::cuda::ListShape& shape, std::vector<uint32_t> places);

  int32_t built_end(uint32_t layer) const override {
    return places_[layer] == IndexedLayers::kNone ? 0 : layers_[places_[layer]].built;
  }
  int32_t needs_until(uint32_t layer) const override;
  uint64_t bytes() const override;
  /// Lists are not copied to the host.
  Status fetch(KeyCodes& codes) const override;

  /// Makes it what from is, cut to a length. False: there is no memory for that, and it is empty.
  Result<bool> copy(const DeviceListIndex& from, int32_t length, cudaStream_t stream);
  /// Forgets what depends on tokens from length on: lists cannot be cut back.
  Status truncate(int32_t length, cudaStream_t stream);
  /// Room for lists of so many entries in every layer, which are lost. False: as copy().
  Result<bool> reserve(uint32_t stride);
  /// Room for so many rows of queries of every layer, from which centroids will be made.
  Result<bool> reserve_samples(size_t rows);
  void drop_samples() { samples_ = {}; }
  bool has_samples() const { return samples_.size() > 0; }
  /// [rows, n_head, head_dim] of a layer's place.
  __nv_bfloat16* samples(uint32_t at) const;
  /// Whether every layer has lists.
  bool complete() const;
  kernels::cuda::ListIndex view() const;
  std::vector<Layer>& layers() { return layers_; }

 private:
  Result<bool> allocated(const Status& status);
  Status reserve_all(uint32_t stride);
  void cut(int32_t length);
  void clear();

  kernels::cuda::ListShape shape_;
  std::vector<uint32_t> places_;
  std::vector<Layer> layers_;
  uint32_t stride_ = 0;
  kernels::cuda::DeviceBuffer<float> centroids_, cosines_;
  kernels::cuda::DeviceBuffer<float2> usual_;
  kernels::cuda::DeviceBuffer<uint32_t> keys_;
  kernels::cuda::DeviceBuffer<__half> scores_;
  kernels::cuda::DeviceBuffer<int32_t> listed_, lengths_;
  kernels::cuda::DeviceBuffer<__nv_bfloat16> samples_;
};

}  // namespace reprise
