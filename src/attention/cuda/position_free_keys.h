// What reading position-free keys takes on a CUDA device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/key_spans.h"
#include "kernels/cuda/paged_decode.h"
#include "kernels/cuda/rotated_pages.h"
#include "model/rope.h"

namespace reprise {

/// Angles of the positions that keys may stand at, and rotated copies of the pages that rows of a
/// prompt read.
class PositionFreeKeys {
 public:
  /// ropes: distinct ones. For pages like those of kv; rows read so many of them at most, and of
  /// keys that are packed so many.
  Status reserve(std::span<const RopeTable* const> ropes, const kernels::cuda::PagedKv& kv,
                 uint32_t pages, uint32_t packed_keys);
  kernels::cuda::KeyAngles angles(uint32_t rope) const;
  /// The same for packed keys: rows are those of positions().
  kernels::cuda::KeyAngles packed_angles(uint32_t rope, const uint32_t* rows) const;
  kernels::cuda::PositionAngles positions(uint32_t rope) const;

  /// What copies are made of.
  struct Source {
    const uint32_t* pages = nullptr;                          // page table
    uint32_t keys = 0;                                        // at most
    const int32_t *tokens = nullptr, *packed_keys = nullptr;  // as RotatedPagesArgs
    uint32_t first_page = 0;  // copies of pages before it stay; without tokens
  };
  /// Enqueues copies of the pages of so many keys; they are pages() of copies() until the next
  /// call.
  Status rotate(const kernels::cuda::PagedKv& kv, const Source& source, uint32_t rope,
                cudaStream_t stream) const;
  const kernels::cuda::PagedKv& copies() const { return copies_; }
  const uint32_t* pages() const { return pages_.data(); }
  /// Pages that there is room for.
  uint32_t capacity() const { return capacity_; }

 private:
  struct Angles {
    uint32_t pairs = 0;
    kernels::cuda::DeviceBuffer<float> of_pages;      // [pages][pairs][2]
    kernels::cuda::DeviceBuffer<float> of_tokens;     // [16][pairs][2]
    kernels::cuda::DeviceBuffer<float> of_positions;  // as PositionAngles
  };
  static Status make_angles(const RopeTable& rope, uint32_t pages, uint32_t packed_keys,
                            Angles& angles);

  uint32_t capacity_ = 0;
  std::vector<Angles> angles_;  // [ropes]
  kernels::cuda::PagedKv copies_;
  kernels::cuda::DeviceBuffer<std::byte> bytes_;  // of copies_
  kernels::cuda::DeviceBuffer<uint32_t> pages_;   // [pages] 0, 1, ...
};

}  // namespace reprise
