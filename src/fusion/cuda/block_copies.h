// Sends blocks of stored chunks to a device: all of each, or the device's share of every row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "fusion/block_reader.h"
#include "kernels/cuda/place_rows.h"

namespace reprise {

/// The KV heads of a device, which are side by side in every row.
struct RowShare {
  size_t rank = 0, ranks = 1;
  size_t values = 0;  // of a row, of a rank; a multiple of kernels::kScaleValues
};

/// Where the rows of a block lie on a device: its share of their values, and all their scales.
class DeviceBlock {
 public:
  /// at: of the block, in bytes; a multiple of kBlockAlignment.
  DeviceBlock(const StoredChunk& chunk, const RowShare& share, size_t at);
  /// row: below tokens keys, above values.
  kernels::cuda::StoredRow row(uint32_t row) const;
  /// Where the next block begins.
  size_t end() const { return end_; }

 private:
  bool codes_;
  size_t at_, scales_at_, end_;  // in bytes
  RowShare share_;
};

class BlockCopies {
 public:
  /// to: on the device, as DeviceBlock has it.
  BlockCopies(std::byte* to, const RowShare& share, cudaStream_t stream)
      : to_(to), share_(share), stream_(stream) {}
  /// A block, which stays until it is copied.
  Status add(const StoredChunk& chunk, const std::byte* block);
  Status finish();

 private:
  Status copy_codes(const StoredChunk& chunk, const std::byte* block);
  Status copy(std::byte* to, const std::byte* from, size_t bytes) const;
  Status copy_columns(std::byte* to, const std::byte* from, size_t width, size_t rows) const;

  std::byte* const to_;
  const RowShare share_;
  cudaStream_t const stream_;
  size_t at_ = 0;                   // where the next block goes
  std::span<const std::byte> run_;  // blocks side by side, which are copied at once
};

}  // namespace reprise
