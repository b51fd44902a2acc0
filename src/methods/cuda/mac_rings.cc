#include <algorithm>

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
  cudaError_t fill(uint32_t number, int byte, cudaStream_t stream) const {
    return cudaMemset2DAsync(of(number), pitch(), byte, ring * sizeof(T), layers, stream);
  }
  cudaError_t copy(uint32_t from, uint32_t to, cudaStream_t stream) const {
    return cudaMemcpy2DAsync(of(to), pitch(), of(from), pitch(), ring * sizeof(T), layers,
                             cudaMemcpyDeviceToDevice, stream);
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

Status MacRingPool::copy(uint32_t from, uint32_t to) const {
  const size_t rings = owners_.size();
  for (const auto& codes : {Slices<std::byte>{q_.data(), query_codes(), rings, layers_},
                            Slices<std::byte>{out_.data(), result_codes(), rings, layers_}}) {
    REPRISE_CUDA(codes.copy(from, to, stream_), kWhat);
  }
  for (float* of : {q_scales_.data(), out_scales_.data()}) {
    if (!coded_) break;
    REPRISE_CUDA((Slices<float>{of, scales(), rings, layers_}.copy(from, to, stream_)), kWhat);
  }
  REPRISE_CUDA(
      (Slices<MacEntry>{entries_.data(), entries(), rings, layers_}.copy(from, to, stream_)),
      kWhat);
  REPRISE_CUDA(
      (Slices<MacGuardState>{guards_.data(), n_kv_head_, rings, layers_}.copy(from, to, stream_)),
      kWhat);
  return {};
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
