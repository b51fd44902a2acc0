// Streams weights: what a warp reads of a tile, one read after the other.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/matvec_params.cuh"

namespace reprise::kernels::cuda {

namespace matvec_detail {

__device__ inline uint32_t tiles_of(const Part& part, const Place& place) {
  if (place.begin == place.end) return 0;
  return (part.w.tiles - place.cluster + part.clusters - 1) / part.clusters;
}

// The reads that a warp multiplies, kStages of them on their way. All lanes call.
// A read is, of quantised weights, a unit with its scales.
template <class F>
class WeightStream {
 public:
  static constexpr uint32_t kStages = ring_stages(F::kValue);

  __device__ WeightStream(const Part& part, const Place& place, unsigned char* ring)
      : ring_(ring),
        reads_(place.end - place.begin),
        left_(reads_ * tiles_of(part, place)),
        unit_(place.cluster * part.w.chunks + place.begin),
        next_unit_(part.clusters * part.w.chunks - reads_) {
    const uint32_t lane = threadIdx.x % 32;
    codes_ = part.w.codes + lane * 16;
    scales_ = part.w.scales + lane * 16;
    if constexpr (F::kValue.super) factors_ = part.w.factors + (lane - kScaleCopies) * 16;
#pragma unroll 1
    for (uint32_t i = 0; i < kStages; ++i) fetch();
  }

  // The oldest read, when it is there.
  __device__ const unsigned char* wait() const {
    wait_for_copy_groups<static_cast<int>(kStages) - 1>();
    __syncwarp();
    return ring_ + slot_;
  }

  // Asks for the next read, if there is one, where the oldest was, which all lanes have used.
  __device__ void fetch() {
    __syncwarp();
    if (left_ > 0) {
      copy_unit(ring_ + slot_);
      --left_;
      ++unit_;
      if (++read_ == reads_) {
        read_ = 0;
        unit_ += next_unit_;
      }
    }
    end_copy_group();
    slot_ = slot_ == (kStages - 1) * F::kReadBytes ? 0 : slot_ + F::kReadBytes;
  }

 private:
  static constexpr uint32_t kScaleCopies = kTileRows * F::kChunkScaleBytes / 16;
  static constexpr uint32_t kFactorCopies = F::kValue.super ? kFactorBytes / 16 : 0;

  __device__ void copy_unit(unsigned char* to) const {
    const uint32_t lane = threadIdx.x % 32;
    to += lane * 16;
    const unsigned char* codes = codes_ + size_t{unit_} * kUnitBytes;
    copy_16_bytes_once(to, codes);
    copy_16_bytes_once(to + kUnitBytes / 2, codes + kUnitBytes / 2);
    const unsigned char* from = scales_ + size_t{unit_} * (kScaleCopies * 16);
    if constexpr (F::kValue.super) {  // rows have whole 256 columns
      if (lane >= kScaleCopies) from = factors_ + size_t{unit_ / F::kFactorChunks} * kFactorBytes;
    }
    if (lane < kScaleCopies + kFactorCopies) copy_16_bytes_once(to + kUnitBytes, from);
  }

  unsigned char* ring_;
  const unsigned char *codes_, *scales_, *factors_ = nullptr;  // of this lane
  uint32_t reads_, left_;                                      // of the warp in a row; in all
  uint32_t unit_, next_unit_;     // to ask for; from the end of a tile's to the next one's
  uint32_t read_ = 0, slot_ = 0;  // asked for of the tile; of the oldest read
};

// A read is two chunks of every row side by side: rows of 128 bytes.
template <class F>
requires(!F::kQuantized) class WeightStream<F> {
 public:
  static constexpr uint32_t kStages = ring_stages(F::kValue);

  __device__ WeightStream(const Part& part, const Place& place, unsigned char* ring)
      : ring_(ring), reads_(place.end - place.begin), tiles_(tiles_of(part, place)) {
    const DeviceWeights& w = part.w;
    const uint32_t lane = threadIdx.x % 32;
    const size_t tile = place.cluster, chunks = size_t{part.clusters} * w.chunks;
    row_step_ = w.chunks * kChunkBytes * 4;
    codes_ = w.codes + (tile * kTileRows + lane / 8) * (w.chunks * kChunkBytes) +
             place.begin * 2 * kChunkBytes + lane % 8 * 16;
    next_codes_ = chunks * kUnitBytes - size_t{reads_} * 2 * kChunkBytes;
    const bool odd = w.chunks % 2 != 0 && place.end == part.reads;
    overhang_ = odd && lane % 8 >= 4 ? kChunkBytes : 0;
#pragma unroll 1
    for (uint32_t i = 0; i < kStages; ++i) fetch();
  }

  __device__ const unsigned char* wait() const {
    wait_for_copy_groups<static_cast<int>(kStages) - 1>();
    __syncwarp();
    return ring_ + slot_;
  }

  __device__ void fetch() {
    __syncwarp();
    if (tiles_ > 0) {
      ++read_;
      copy_rows(ring_ + slot_);
      if (read_ == reads_) {
        read_ = 0;
        --tiles_;
        codes_ += next_codes_;
      }
    }
    end_copy_group();
    slot_ = slot_ == (kStages - 1) * F::kReadBytes ? 0 : slot_ + F::kReadBytes;
  }

 private:
  // A second chunk behind the row's end is the one before again; its x is 0.
  __device__ void copy_rows(unsigned char* to) {
    const uint32_t lane = threadIdx.x % 32;
    const unsigned char* from = read_ == reads_ ? codes_ - overhang_ : codes_;
    to += lane % 8 / 4 * kChunkStride + lane / 8 * kChunkBytes + lane % 4 * 16;
#pragma unroll
    for (uint32_t i = 0; i < kTileRows / 4; ++i) {
      copy_16_bytes_of_256(to + i * 4 * kChunkBytes, from);
      from += row_step_;
    }
    codes_ += 2 * kChunkBytes;
  }

  unsigned char* ring_;
  uint32_t reads_, tiles_;        // of the warp in a row; that are left
  uint32_t read_ = 0, slot_ = 0;  // asked for of the tile; of the oldest read
  uint32_t row_step_ = 0, overhang_ = 0;
  const unsigned char* codes_ = nullptr;  // of this lane
  size_t next_codes_ = 0;                 // to the next tile
};

}  // namespace matvec_detail

}  // namespace reprise::kernels::cuda
