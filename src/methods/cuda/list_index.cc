#include "methods/cuda/list_index.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "lists of keys";

template <class T>
uint64_t bytes_of(const DeviceBuffer<T>& buffer) {
  return buffer.size() * sizeof(T);
}

}  // namespace

DeviceListIndex::DeviceListIndex(const ListShape& shape, std::vector<uint32_t> places)
    : shape_(shape), places_(std::move(places)), layers_(shape.layers) {}

int32_t DeviceListIndex::needs_until(uint32_t layer) const {
  if (places_[layer] == IndexedLayers::kNone) return 0;
  const Layer& own = layers_[places_[layer]];
  return std::max(own.built, own.listed);
}

uint64_t DeviceListIndex::bytes() const {
  return bytes_of(centroids_) + bytes_of(cosines_) + bytes_of(usual_) + bytes_of(keys_) +
         bytes_of(scores_) + bytes_of(listed_) + bytes_of(lengths_) + bytes_of(samples_);
}

Status DeviceListIndex::fetch(KeyCodes&) const {
  return fail(ErrorCode::kUnsupported, "lists of keys on a device are not saved");
}

bool DeviceListIndex::complete() const {
  return !layers_.empty() && std::all_of(layers_.begin(), layers_.end(),
                                         [](const Layer& layer) { return layer.built > 0; });
}

ListIndex DeviceListIndex::view() const {
  return {centroids_.data(), usual_.data(),  cosines_.data(), keys_.data(),
          scores_.data(),    listed_.data(), lengths_.data(), stride_};
}

__nv_bfloat16* DeviceListIndex::samples(uint32_t at) const {
  return samples_.data() + samples_.size() / layers_.size() * at;
}

void DeviceListIndex::clear() {
  layers_.assign(layers_.size(), {});
  stride_ = 0;
  centroids_ = {};
  cosines_ = {};
  usual_ = {};
  keys_ = {};
  scores_ = {};
  listed_ = {};
  lengths_ = {};
  samples_ = {};
}

Result<bool> DeviceListIndex::allocated(const Status& status) {
  if (status) return true;
  if (status.error().code != ErrorCode::kOutOfMemory) {
    return tl::unexpected<Error>(status.error());
  }
  clear();
  return false;
}

Status DeviceListIndex::reserve_all(uint32_t stride) {
  const uint32_t layers = shape_.layers;
  const size_t lists = shape_.lists(layers);
  REPRISE_CHECK(centroids_.reserve(lists * shape_.dims(), kWhat));
  REPRISE_CHECK(usual_.reserve(shape_.tasks(layers), kWhat));
  REPRISE_CHECK(cosines_.reserve(shape_.cosines(layers), kWhat));
  REPRISE_CHECK(listed_.reserve(layers, kWhat));
  REPRISE_CHECK(lengths_.reserve(layers, kWhat));
  REPRISE_CHECK(keys_.reserve(lists * stride, kWhat));
  return scores_.reserve(lists * stride, kWhat);
}

Result<bool> DeviceListIndex::reserve(uint32_t stride) {
  stride_ = stride;
  return allocated(reserve_all(stride));
}

Result<bool> DeviceListIndex::reserve_samples(size_t rows) {
  const size_t row = size_t{shape_.n_head} * shape_.head_dim;
  return allocated(samples_.reserve(shape_.layers * rows * row, kWhat));
}

Result<bool> DeviceListIndex::copy(const DeviceListIndex& from, int32_t length,
                                   cudaStream_t stream) {
  layers_ = from.layers_;
  cut(length);
  const auto take = [&](auto& to, const auto& source) -> Status {
    const size_t bytes = bytes_of(source);
    if (bytes == 0) return {};
    REPRISE_CHECK(to.reserve(source.size(), kWhat));
    REPRISE_CUDA(cudaMemcpyAsync(to.data(), source.data(), bytes, cudaMemcpyDeviceToDevice, stream),
                 kWhat);
    return {};
  };
  const auto take_all = [&]() -> Status {
    REPRISE_CHECK(take(samples_, from.samples_));
    if (!complete()) return {};
    stride_ = from.stride_;
    REPRISE_CHECK(take(centroids_, from.centroids_));
    REPRISE_CHECK(take(usual_, from.usual_));
    REPRISE_CHECK(take(cosines_, from.cosines_));
    REPRISE_CHECK(take(listed_, from.listed_));
    REPRISE_CHECK(take(lengths_, from.lengths_));
    REPRISE_CHECK(take(keys_, from.keys_));
    return take(scores_, from.scores_);
  };
  return allocated(take_all());
}

Status DeviceListIndex::truncate(int32_t length, cudaStream_t stream) {
  cut(length);
  // Averages are of an answer that is gone.
  REPRISE_CUDA(cudaMemsetAsync(cosines_.data(), kNoCosineByte, bytes_of(cosines_), stream), kWhat);
  return {};
}

void DeviceListIndex::cut(int32_t length) {
  for (Layer& layer : layers_) {
    if (layer.seen > length) layer.seen = layer.sampled = 0;
    if (layer.built > length || layer.listed > length) layer.built = layer.listed = 0;
  }
}

}  // namespace reprise
