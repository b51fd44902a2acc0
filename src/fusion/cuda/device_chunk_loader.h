// Brings stored chunks into pages on a CUDA device: read into page-locked memory, copied and
// rotated to their places on streams of their own beside the computing of earlier layers.
#pragma once

#include <cuda_bf16.h>

#include <deque>
#include <span>
#include <vector>

#include "fusion/block_reader.h"
#include "fusion/cuda/resident_chunks.h"
#include "fusion/fused_prompt.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/paged_decode.h"
#include "model/model.h"

namespace reprise {

/// Memory and events of a loader, kept from one to the next.
struct LoadBuffers {
  static constexpr size_t kSlots = 4;
  struct Events {                      // of a part; timed
    kernels::cuda::CudaEvent waits;    // on the passes' stream, before it waits for the part
    kernels::cuda::CudaEvent arrived;  // there, when it has waited
    kernels::cuda::CudaEvent copied;   // on the copies' stream
    kernels::cuda::CudaEvent placing;  // on that of places
    kernels::cuda::CudaEvent placed;
  };
  kernels::cuda::CudaStream copies, placing;
  kernels::cuda::CudaEvent ready;  // what placing reads was sent
  kernels::cuda::PinnedBuffer<std::byte> host[kSlots];
  kernels::cuda::DeviceBuffer<std::byte> device[kSlots];
  // Of every loaded row: its place among the rows of its part's blocks, and in the prompt.
  kernels::cuda::DeviceBuffer<uint32_t> k_rows, v_rows;
  kernels::cuda::DeviceBuffer<int32_t> places, angles_at;
  struct Rope {
    const RopeTable* table = nullptr;
    kernels::cuda::DeviceBuffer<double> inv_freq;  // [pairs]
    kernels::cuda::DeviceBuffer<float> cos_sin;    // [loaded rows][pairs][2]
  };
  std::vector<Rope> ropes;  // distinct ones
  std::deque<Events> events;
};

class DeviceChunkLoader {
 public:
  struct Target {
    kernels::cuda::PagedKv kv;
    const uint32_t* tables = nullptr;  // [n_layer, capacity] of the sequence, on the device
    uint32_t capacity = 0, layers = 0;
    uint32_t first_layer = 0;                 // before it nothing is placed
    std::span<const RopeTable* const> ropes;  // [n_layer]; none: keys stay unrotated
    cudaStream_t stream = nullptr;            // of the passes
    ResidentChunks* resident = nullptr;       // holds chunks, and keeps those that are read
  };
  /// Works on the device that is current; the stream is idle when it goes. buffers: of no other
  /// loader meanwhile. pool: nobody else's meanwhile.
  static Result<std::unique_ptr<DeviceChunkLoader>> create(std::vector<ChunkLoad> loads,
                                                           const Target& target, ThreadPool& pool,
                                                           LoadBuffers& buffers);
  ~DeviceChunkLoader();

  /// Begins to copy the first layer before it is asked for, where nothing has to be read first.
  /// Errors: those of BlockReader::next.
  Status copy_ahead();
  /// Has the stream wait until all layers up to this one are in the pages; itself waits until they
  /// are read. Errors: those of BlockReader::next.
  Status load_through(uint32_t layer);
  const StoredChunk* failed() const { return reader_ ? reader_->failed() : nullptr; }
  /// wait_ms is the time that the stream waited. Of a stream that is idle.
  void add_cost(FusionCost& cost) const;

 private:
  DeviceChunkLoader(std::vector<ChunkLoad> loads, const Target& target, LoadBuffers& buffers)
      : loads_(std::move(loads)), target_(target), b_(buffers) {}
  Status reserve();
  Status send_rows();
  BlockReader::Plan read_plan(ThreadPool& pool);
  Status load_part(uint32_t layer, size_t part);
  Status copy_next();
  Status place(uint32_t layer, size_t part, const std::byte* blocks);
  uint32_t rows_of(const BlockPart& part) const;

  const std::vector<ChunkLoad> loads_;
  const Target target_;
  LoadBuffers& b_;
  std::vector<BlockPart> parts_;
  std::vector<size_t> first_row_;  // [parts] among all loaded rows
  size_t rows_ = 0;
  uint32_t placed_ = 0;                                       // layers, or passed over
  std::vector<std::shared_ptr<ResidentChunks::Entry>> held_;  // [loads] or null
  uint32_t first_read_ = 0;                                   // layer
  size_t parts_copied_ = 0, parts_done_ = 0;
  uint64_t bytes_ = 0;
  std::unique_ptr<BlockReader> reader_;
};

}  // namespace reprise
