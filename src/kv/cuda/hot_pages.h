// Parts of pages of the host's memory that a device keeps at hand in its own; see
// kernels/cuda/hot_parts.h. What is expected to be read is copied on a stream beside the passes'.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/hot_parts.h"
#include "reprise/kv_tiers.h"

namespace reprise {

/// Lists of a layer, of which each KV head has one.
struct LayerLists {
  uint32_t layer = 0;
  kernels::cuda::KeyLists lists;
};

class HotPages {
 public:
  struct Size {
    uint32_t layers = 0, n_kv_head = 0;
    uint32_t first_slot = 0, slots = 0;        // frames; at least one of each layer
    uint32_t first_host = 0, host_frames = 0;  // frames
    size_t part_bytes = 0;                     // of a page, what a KV head has
  };
  /// On the current device. pages: frame 0.
  static Result<std::unique_ptr<HotPages>> create(const Size& size, std::byte* pages);
  ~HotPages();

  /// Makes room for lists of so many pages; called while nothing is computed.
  Status reserve(uint32_t sequences, uint32_t capacity);

  /// Of every pass, before its layers.
  Status begin(const kernels::cuda::StoredRows& rows, cudaStream_t stream);
  /// Pages whose content came from elsewhere.
  Status forget(const kernels::cuda::PageIds& pages, cudaStream_t stream);
  /// Puts lists of rows at found(), with slots where there are; they stay until the next pass, as
  /// streams beside this one look at them. fetch: fetch() brings what has none.
  Status find(std::span<const LayerLists> layers, uint32_t first_row, uint32_t rows, bool fetch,
              cudaStream_t stream);

  /// Where find() put lists of a layer.
  uint32_t* found(uint32_t layer, uint32_t first_row) {
    const size_t row = size_t{layer} * sequences_ + first_row;
    return found_.data() + row * size_.n_kv_head * capacity_;
  }

  // On a stream of its own, which follow() lets wait for what the passes' stream was given so far.

  cudaStream_t stream() const { return stream_.get(); }
  Status follow(cudaStream_t passes);
  /// What a layer holds.
  Status forget(uint32_t layer);
  /// Lists that will be read so many steps from now.
  Status expect(std::span<const LayerLists> layers, uint32_t rows, uint32_t ahead);
  /// Brings what is wanted of layers, in place of what is not needed then. late: it was read in
  /// place.
  Status fetch(std::span<const uint32_t> layers, uint32_t ahead, bool late);
  /// Lets the passes' stream wait for what was brought.
  Status join(cudaStream_t passes);
  /// Of every pass, after its layers.
  Status end(cudaStream_t passes);

  /// As of the last pass that is finished. Counts parts, not pages.
  KvPaging paging() const;

 private:
  explicit HotPages(const Size& size, std::byte* pages);
  Status allocate();
  /// found_row: the first row of found() that is written, if any.
  Status look_up(std::span<const LayerLists> layers, kernels::cuda::HotLookUp args,
                 std::optional<uint32_t> found_row, cudaStream_t stream);

  Size size_;
  std::byte* pages_;
  uint32_t sequences_ = 0, capacity_ = 0;
  bool follows_ = false;  // since the last join()
  kernels::cuda::HotParts parts_;
  kernels::cuda::CudaStream stream_;
  kernels::cuda::CudaEvent asked_, brought_;
  kernels::cuda::DeviceBuffer<uint32_t> slots_;                         // [host_frames, n_kv_head]
  kernels::cuda::DeviceBuffer<uint32_t> held_, used_, wanted_, given_;  // as HotParts
  kernels::cuda::DeviceBuffer<uint32_t> wants_, gifts_, step_;          // likewise
  kernels::cuda::DeviceBuffer<kernels::cuda::HotCounts> counts_;        // [1]
  kernels::cuda::PinnedBuffer<kernels::cuda::HotCounts> counted_;       // [1]
  kernels::cuda::DeviceBuffer<uint32_t> found_;  // [layers, sequences, n_kv_head, capacity]
};

}  // namespace reprise
