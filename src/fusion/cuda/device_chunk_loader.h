// Brings stored chunks into pages on CUDA devices: read into page-locked memory, copied and
// rotated to their places on streams of their own beside the computing of earlier layers. Devices
// that share a model get the KV heads of their share, which are side by side in every row.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "fusion/cuda/block_copies.h"
#include "fusion/cuda/resident_chunks.h"
#include "fusion/fused_prompt.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/paged_decode.h"
#include "model/model.h"

namespace reprise {

inline constexpr size_t kLoadSlots = 4;

/// Where what is read goes on the host, kept from one loader to the next.
struct LoadSlots {
  kernels::cuda::PinnedBuffer<std::byte> slots[kLoadSlots];
};

/// Memory and events of a device, likewise.
struct LoadBuffers {
  struct Events {                      // of a part; timed
    kernels::cuda::CudaEvent waits;    // on the passes' stream, before it waits for the part
    kernels::cuda::CudaEvent arrived;  // there, when it has waited
    kernels::cuda::CudaEvent copied;   // on the copies' stream
    kernels::cuda::CudaEvent placing;  // on that of places
    kernels::cuda::CudaEvent placed;
  };
  kernels::cuda::CudaStream copies, placing;
  kernels::cuda::CudaEvent ready;  // what placing reads was sent
  kernels::cuda::DeviceBuffer<std::byte> device[kLoadSlots];
  // Of every loaded row: its place among its part's blocks, and in the prompt.
  kernels::cuda::DeviceBuffer<kernels::cuda::StoredRow> k_rows, v_rows;
  kernels::cuda::DeviceBuffer<int32_t> places, angles_at;
  struct Rope {
    const RopeTable* table = nullptr;
    kernels::cuda::DeviceBuffer<double> inv_freq;  // [pairs]
    kernels::cuda::DeviceBuffer<float> cos_sin;    // [loaded rows][pairs][2]
  };
  std::vector<Rope> ropes;  // distinct ones
  std::deque<Events> events;
};

class LayerRows;

class DeviceChunkLoader {
 public:
  /// A device's pages.
  struct Rank {
    kernels::cuda::PagedKv kv;
    const LayerRows* rows = nullptr;  // has the tables of pages when begin_placing() is called
    cudaStream_t stream = nullptr;    // of the passes
    LoadBuffers* buffers = nullptr;   // of no other loader meanwhile
  };
  struct Target {
    std::vector<Rank> ranks;  // of devices 0, 1, ...
    uint32_t layers = 0;
    uint32_t first_layer = 0;                 // before it nothing is placed
    std::span<const RopeTable* const> ropes;  // [n_layer]; none: keys stay unrotated
    ResidentChunks* resident = nullptr;       // holds chunks, and keeps those that are read
    LoadSlots* slots = nullptr;               // of no other loader meanwhile
    double row_ms = 0;                        // as BlockReader::Plan
  };
  /// Begins to read, and to copy where nothing has to be read first. The streams are idle when it
  /// goes. pool: nobody else's meanwhile. Errors of copying: those of BlockReader::next.
  static Result<std::unique_ptr<DeviceChunkLoader>> create(std::vector<ChunkLoad> loads,
                                                           Target target, ThreadPool& pool);
  ~DeviceChunkLoader();

  /// Nothing is placed before what is enqueued on the passes' streams by now: pages that are
  /// reserved, and their tables. To be called before load_through(). Errors: those of
  /// BlockReader::next.
  Status begin_placing();
  /// Has the stream wait until all layers up to this one are in the pages; itself waits until they
  /// are read. Errors: those of BlockReader::next.
  Status load_through(uint32_t layer);
  const StoredChunk* failed() const { return reader_ ? reader_->failed() : nullptr; }
  const SlowLoad* slow() const { return reader_ ? reader_->slow() : nullptr; }
  /// wait_ms is the time that the stream waited. Of a stream that is idle.
  void add_cost(FusionCost& cost) const;

 private:
  DeviceChunkLoader(std::vector<ChunkLoad> loads, Target target)
      : loads_(std::move(loads)), target_(std::move(target)) {}
  /// body(rank) with its device current.
  template <class Body>
  Status each_rank(Body&& body) const;
  Status reserve();
  static Status reserve_events(LoadBuffers& buffers, size_t count);
  Status send_rows(const Rank& rank) const;
  Status send_angles(const Rank& rank) const;
  BlockReader::Plan read_plan(ThreadPool& pool);
  Status load_part(uint32_t layer, size_t part);
  /// What is asked for next, up to so many parts, where nothing has to be read first.
  Status copy_ahead(size_t most_parts);
  Status copy_next();
  Status copy_part(const Rank& rank, size_t nth, const std::byte* in_slot) const;
  Status place(const Rank& rank, uint32_t layer, size_t part, const std::byte* blocks) const;
  RowShare share_of(const Rank& rank) const;
  size_t device_bytes(const BlockPart& part, const RowShare& share) const;
  uint32_t rows_of(const BlockPart& part) const;

  const std::vector<ChunkLoad> loads_;
  const Target target_;
  std::vector<BlockPart> parts_;
  std::vector<size_t> first_row_;  // [parts] among all loaded rows
  size_t rows_ = 0;
  uint32_t placed_ = 0;                                       // layers, or passed over
  std::vector<std::shared_ptr<ResidentChunks::Entry>> held_;  // [loads] or null
  bool all_read_ = false;                                     // all of them when it began
  uint32_t first_read_ = 0;                                   // layer
  size_t parts_copied_ = 0, parts_done_ = 0;
  uint64_t bytes_ = 0;
  std::unique_ptr<BlockReader> reader_;
};

}  // namespace reprise
