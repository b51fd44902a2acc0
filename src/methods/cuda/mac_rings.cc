#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/try.h"
#include "methods/cuda/mac.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "rings of mac";

}  // namespace

void MacRingPool::describe(const ModelConfig& config, uint32_t window, bool coded,
                           const std::vector<bool>& layers) {
  n_head_ = config.n_head;
  n_kv_head_ = config.n_kv_head;
  head_dim_ = config.head_dim;
  window_ = window;
  coded_ = coded;
  index_.clear();
  layers_ = 0;
  for (const bool own : layers) index_.push_back(own ? layers_++ : kNone);
}

Status MacRingPool::reserve(uint32_t rings) {
  if (rings <= owners_.size()) return {};
  size_t free = 0, total = 0;
  REPRISE_CUDA(cudaMemGetInfo(&free, &total), kWhat);
  if (made_ == 0 && free < ring_bytes()) {
    return fail(ErrorCode::kOutOfMemory,
                "a ring of mac takes {} MiB of device memory, {} MiB are free; lower --kv-memory, "
                "or choose ring=q8_0 or a smaller window",
                ring_bytes() >> 20, free >> 20);
  }
  for (uint32_t* owner : owners_) {
    if (owner != nullptr) *owner = kNoRing;
  }
  made_ = 0;
  owners_.assign(rings, nullptr);
  used_.assign(rings, 0);
  const size_t bytes[kKinds] = {entries() * sizeof(MacEntry),
                                n_kv_head_ * sizeof(MacGuardState),
                                query_codes(),
                                result_codes(),
                                scales() * sizeof(float),
                                scales() * sizeof(float),
                                sizeof(MacCounters)};
  for (size_t kind = 0; kind < kKinds; ++kind) {
    arrays_[kind].bytes = layers_ * bytes[kind];
    REPRISE_CHECK(arrays_[kind].memory.reserve(rings * arrays_[kind].bytes, nullptr, kWhat));
  }
  return {};
}

MacRings MacRingPool::rings(uint32_t layer) const {
  MacRings rings;
  rings.q = first<void>(kQueries, layer);
  rings.out = first<void>(kResults, layer);
  rings.entries = first<MacEntry>(kEntries, layer);
  rings.guards = first<MacGuardState>(kGuards, layer);
  rings.counters = first<MacCounters>(kCounters, layer);
  rings.window = window_;
  rings.layers = layers_;
  if (coded_) {
    rings.q_scales = first<float>(kQueryScales, layer);
    rings.out_scales = first<float>(kResultScales, layer);
  }
  return rings;
}

uint64_t MacRingPool::ring_bytes() const {
  const uint64_t results = result_codes() + scales() * sizeof(float);
  return layers_ * (query_bytes() + results + entries() * sizeof(MacEntry));
}

uint64_t MacRingPool::bytes() const {
  return std::accumulate(
      arrays_.begin(), arrays_.end(), uint64_t{0},
      [](uint64_t sum, const Array& array) { return sum + array.memory.mapped(); });
}

uint64_t MacRingPool::saved_bytes() const {
  const auto arrays = saved();
  return std::accumulate(arrays.begin(), arrays.end(), uint64_t{0},
                         [](uint64_t sum, const Array& array) { return sum + array.bytes; });
}

Result<bool> MacRingPool::grow() {
  for (Array& array : arrays_) {
    const Status status = array.memory.extend((made_ + 1) * array.bytes, false, kWhat);
    if (status) continue;
    if (status.error().code != ErrorCode::kOutOfMemory) return tl::unexpected(status.error());
    owners_.resize(made_);
    used_.resize(made_);
    return false;
  }
  for (const Array& array : arrays_) {
    REPRISE_CUDA(cudaMemsetAsync(array.of(made_), 0, array.bytes, stream_), kWhat);
  }
  ++made_;
  return true;
}

Result<uint32_t> MacRingPool::find_ring() {
  const auto made = owners_.begin() + made_;
  const auto free = std::find(owners_.begin(), made, nullptr);
  if (free != made) return static_cast<uint32_t>(free - owners_.begin());
  if (made_ < owners_.size()) {
    REPRISE_TRY(const bool grown, grow());
    if (grown) return made_ - 1;
  }
  const auto idle = std::min_element(used_.begin(), used_.begin() + made_);
  if (made_ == 0 || *idle == pass_) return kNoRing;
  const auto ring = static_cast<uint32_t>(idle - used_.begin());
  *owners_[ring] = kNoRing;
  return ring;
}

Result<uint32_t> MacRingPool::take(uint32_t* owner) {
  REPRISE_TRY(const uint32_t ring, find_ring());
  if (ring == kNoRing) return ring;
  owners_[ring] = owner;
  used_[ring] = pass_;
  REPRISE_CHECK(fill(kEntries, ring, 0xff));
  REPRISE_CHECK(fill(kGuards, ring, 0));
  REPRISE_CHECK(fill(kCounters, ring, 0));
  return ring;
}

Status MacRingPool::fill(Kind kind, uint32_t ring, int byte) const {
  const Array& array = arrays_[kind];
  REPRISE_CUDA(cudaMemsetAsync(array.of(ring), byte, array.bytes, stream_), kWhat);
  return {};
}

Status MacRingPool::bring(Kind kind, uint32_t ring, void* to) const {
  const Array& array = arrays_[kind];
  REPRISE_CUDA(cudaMemcpyAsync(to, array.of(ring), array.bytes, cudaMemcpyDeviceToHost, stream_),
               kWhat);
  REPRISE_CUDA(cudaStreamSynchronize(stream_), kWhat);
  return {};
}

Status MacRingPool::copy(uint32_t from, uint32_t to) const {
  for (const Array& array : saved()) {
    REPRISE_CUDA(cudaMemcpyAsync(array.of(to), array.of(from), array.bytes,
                                 cudaMemcpyDeviceToDevice, stream_),
                 kWhat);
  }
  return {};
}

Result<std::vector<int32_t>> MacRingPool::positions(uint32_t ring) const {
  std::vector<MacEntry> all(size_t{layers_} * entries());
  REPRISE_CHECK(bring(kEntries, ring, all.data()));
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
  for (size_t kind = 0; kind < kCounters; ++kind) {
    REPRISE_CHECK(bring(static_cast<Kind>(kind), ring, to));
    to += arrays_[kind].bytes;
  }
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
  for (const Array& array : saved()) {  // what is not page-locked is staged before a call returns
    REPRISE_CUDA(
        cudaMemcpyAsync(array.of(ring), from, array.bytes, cudaMemcpyHostToDevice, stream_), kWhat);
    from += array.bytes;
  }
  return {};
}

Status MacRingPool::forget(uint32_t ring, int32_t position) const {
  auto* first = reinterpret_cast<MacEntry*>(arrays_[kEntries].of(ring));
  REPRISE_CUDA(mac_forget(first, layers_ * entries(), position, stream_), kWhat);
  return {};
}

std::vector<MacSums> MacRingPool::sums(uint32_t ring) const {
  std::vector<MacCounters> counters(layers_);
  std::vector<MacSums> sums(index_.size());
  if (!bring(kCounters, ring, counters.data())) return sums;
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

void MacRingPool::clear_sums(uint32_t ring) const { static_cast<void>(fill(kCounters, ring, 0)); }

}  // namespace reprise
