#include <algorithm>
#include <cstring>

#include "base/try.h"
#include "methods/cuda/mac.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "rings of mac";

/// One ring's elements in every layer of an array.
template <class T>
struct Slices {
  T* data;
  size_t ring, rings, layers;  // ring: elements

  T* of(uint32_t number) const { return data + number * ring; }
  size_t pitch() const { return rings * ring * sizeof(T); }
  size_t bytes() const { return layers * ring * sizeof(T); }  // of one ring
  cudaError_t fill(uint32_t number, int byte, cudaStream_t stream) const {
    return cudaMemset2DAsync(of(number), pitch(), byte, ring * sizeof(T), layers, stream);
  }
  cudaError_t copy(uint32_t from, uint32_t to, cudaStream_t stream) const {
    return cudaMemcpy2DAsync(of(to), pitch(), of(from), pitch(), ring * sizeof(T), layers,
                             cudaMemcpyDeviceToDevice, stream);
  }
  cudaError_t bring(uint32_t number, void* to, cudaStream_t stream) const {
    return cudaMemcpy2DAsync(to, ring * sizeof(T), of(number), pitch(), ring * sizeof(T), layers,
                             cudaMemcpyDeviceToHost, stream);
  }
  // What is not page-locked is staged before the call returns.
  cudaError_t send(uint32_t number, const void* from, cudaStream_t stream) const {
    return cudaMemcpy2DAsync(of(number), pitch(), from, ring * sizeof(T), ring * sizeof(T), layers,
                             cudaMemcpyHostToDevice, stream);
  }
};

}  // namespace

Status MacRingPool::reserve(const ModelConfig& config, uint32_t window, bool coded,
                            const std::vector<bool>& layers, uint32_t rings) {
  if (rings <= owners_.size()) return {};
  n_head_ = config.n_head;
  n_kv_head_ = config.n_kv_head;
  head_dim_ = config.head_dim;
  window_ = window;
  coded_ = coded;
  index_.clear();
  layers_ = 0;
  for (const bool own : layers) index_.push_back(own ? layers_++ : kNone);
  for (uint32_t* owner : owners_) {
    if (owner != nullptr) *owner = kNoRing;
  }
  owners_.assign(rings, nullptr);
  used_.assign(rings, 0);
  const size_t all = size_t{layers_} * rings;
  REPRISE_CHECK(q_.reserve(all * query_codes(), kWhat));
  REPRISE_CHECK(out_.reserve(all * result_codes(), kWhat));
  REPRISE_CHECK(q_scales_.reserve(all * scales(), kWhat));
  REPRISE_CHECK(out_scales_.reserve(all * scales(), kWhat));
  REPRISE_CHECK(entries_.reserve(all * entries(), kWhat));
  REPRISE_CHECK(guards_.reserve(all * n_kv_head_, kWhat));
  return counters_.reserve(all, kWhat);
}

MacRings MacRingPool::rings(uint32_t layer) const {
  const size_t first = size_t{index_[layer]} * owners_.size();
  MacRings rings;
  rings.q = q_.data() + first * query_codes();
  rings.out = out_.data() + first * result_codes();
  rings.entries = entries_.data() + first * entries();
  rings.guards = guards_.data() + first * n_kv_head_;
  rings.counters = counters_.data() + first;
  rings.window = window_;
  if (coded_) {
    rings.q_scales = q_scales_.data() + first * scales();
    rings.out_scales = out_scales_.data() + first * scales();
  }
  return rings;
}

uint64_t MacRingPool::ring_bytes() const {
  const uint64_t results = result_codes() + scales() * sizeof(float);
  return layers_ * (query_bytes() + results + entries() * sizeof(MacEntry));
}

Result<uint32_t> MacRingPool::take(uint32_t* owner) {
  const auto free = std::find(owners_.begin(), owners_.end(), nullptr);
  auto ring = static_cast<uint32_t>(free - owners_.begin());
  if (free == owners_.end()) {
    ring = static_cast<uint32_t>(std::min_element(used_.begin(), used_.end()) - used_.begin());
    *owners_[ring] = kNoRing;
  }
  owners_[ring] = owner;
  used_[ring] = pass_;
  const size_t rings = owners_.size();
  REPRISE_CUDA(
      (Slices<MacEntry>{entries_.data(), entries(), rings, layers_}.fill(ring, 0xff, stream_)),
      kWhat);
  REPRISE_CUDA(
      (Slices<MacGuardState>{guards_.data(), n_kv_head_, rings, layers_}.fill(ring, 0, stream_)),
      kWhat);
  REPRISE_CUDA((Slices<MacCounters>{counters_.data(), 1, rings, layers_}.fill(ring, 0, stream_)),
               kWhat);
  return ring;
}

template <class Body>
Status MacRingPool::for_arrays(Body&& body) const {
  const size_t rings = owners_.size();
  REPRISE_CUDA(body(Slices<MacEntry>{entries_.data(), entries(), rings, layers_}), kWhat);
  REPRISE_CUDA(body(Slices<MacGuardState>{guards_.data(), n_kv_head_, rings, layers_}), kWhat);
  for (const auto& codes : {Slices<std::byte>{q_.data(), query_codes(), rings, layers_},
                            Slices<std::byte>{out_.data(), result_codes(), rings, layers_}}) {
    REPRISE_CUDA(body(codes), kWhat);
  }
  for (float* of : {q_scales_.data(), out_scales_.data()}) {
    if (!coded_) break;
    REPRISE_CUDA(body(Slices<float>{of, scales(), rings, layers_}), kWhat);
  }
  return {};
}

Status MacRingPool::copy(uint32_t from, uint32_t to) const {
  return for_arrays([&](const auto& array) { return array.copy(from, to, stream_); });
}

Result<std::vector<int32_t>> MacRingPool::positions(uint32_t ring) const {
  const Slices<MacEntry> slices = {entries_.data(), entries(), owners_.size(), layers_};
  std::vector<MacEntry> all(size_t{layers_} * entries());
  REPRISE_CUDA(slices.bring(ring, all.data(), stream_), kWhat);
  REPRISE_CUDA(cudaStreamSynchronize(stream_), kWhat);
  const size_t group = n_head_ / n_kv_head_, heads = all.size() / (window_ * group);
  std::vector<int32_t> positions;
  for (size_t slot = 0; slot < window_ && heads > 0; ++slot) {
    const int32_t position = all[slot * group].position;
    bool held = position >= 0;
    for (size_t i = 0; i < heads * group && held; ++i) {
      held = all[(i / group * window_ + slot) * group + i % group].position == position;
    }
    if (held) positions.push_back(position);
  }
  std::sort(positions.begin(), positions.end());
  return positions;
}

Result<std::vector<std::byte>> MacRingPool::fetch(uint32_t ring) const {
  std::vector<std::byte> bytes(saved_bytes());
  std::byte* to = bytes.data();
  REPRISE_CHECK(for_arrays([&](const auto& array) {
    const cudaError_t error = array.bring(ring, to, stream_);
    to += array.bytes();
    return error;
  }));
  REPRISE_CUDA(cudaStreamSynchronize(stream_), kWhat);
  return bytes;
}

bool MacRingPool::can_be(std::span<const MacEntry> entries) const {
  const size_t group = n_head_ / n_kv_head_;
  for (size_t i = 0; i < entries.size(); ++i) {
    const int32_t position = entries[i].position;
    if (position == -1) continue;  // empty
    if (position < 0 || static_cast<size_t>(position) % window_ != i / group % window_) {
      return false;
    }
  }
  return true;
}

Status MacRingPool::adopt(uint32_t ring, std::span<const std::byte> bytes) const {
  const size_t own = size_t{layers_} * entries();
  if (bytes.size() != saved_bytes()) return {};
  std::vector<MacEntry> checked(own);
  std::memcpy(checked.data(), bytes.data(), own * sizeof(MacEntry));
  if (!can_be(checked)) return {};
  const std::byte* from = bytes.data();
  return for_arrays([&](const auto& array) {
    const cudaError_t error = array.send(ring, from, stream_);
    from += array.bytes();
    return error;
  });
}

Status MacRingPool::forget(uint32_t ring, int32_t position) const {
  const Slices<MacEntry> slices = {entries_.data(), entries(), owners_.size(), layers_};
  for (size_t layer = 0; layer < layers_; ++layer) {
    MacEntry* first = slices.of(ring) + layer * slices.rings * slices.ring;
    REPRISE_CUDA(mac_forget(first, entries(), position, stream_), kWhat);
  }
  return {};
}

std::vector<MacSums> MacRingPool::sums(uint32_t ring) const {
  std::vector<MacCounters> counters(layers_);
  const Slices<MacCounters> slices = {counters_.data(), 1, owners_.size(), layers_};
  const cudaError_t error =
      cudaMemcpy2DAsync(counters.data(), sizeof(MacCounters), slices.of(ring), slices.pitch(),
                        sizeof(MacCounters), layers_, cudaMemcpyDeviceToHost, stream_);
  std::vector<MacSums> sums(index_.size());
  if (error != cudaSuccess || cudaStreamSynchronize(stream_) != cudaSuccess) return sums;
  for (size_t layer = 0; layer < index_.size(); ++layer) {
    if (index_[layer] == kNone) continue;
    const MacCounters& from = counters[index_[layer]];
    MacSums& to = sums[layer];
    to.heads = from.compared * (n_head_ / n_kv_head_);
    to.head_hits = from.head_hits;
    to.reused_heads = from.reused_heads;
    to.groups = from.compared;
    to.group_hits = from.group_hits;
    to.steps = from.steps;
    to.off = from.steps - from.compared;
    to.nonfinite = from.nonfinite;
    to.keys = static_cast<double>(from.keys);
    to.skipped = static_cast<double>(from.skipped);
    to.lag = static_cast<double>(from.lag);
    to.depth = static_cast<double>(from.depth);
    to.distance = from.distance;
    to.share = from.share;
  }
  return sums;
}

void MacRingPool::clear_sums(uint32_t ring) const {
  const Slices<MacCounters> slices = {counters_.data(), 1, owners_.size(), layers_};
  static_cast<void>(slices.fill(ring, 0, stream_));
}

}  // namespace reprise
