#include "attention/cuda/device_ranges.h"

#include <algorithm>
#include <utility>

#include "base/try.h"
#include "kernels/cuda/page_table.h"

namespace reprise {

DeviceRanges::DeviceRanges(std::vector<int32_t> windows, uint32_t sinks)
    : windows_(std::move(windows)), sinks_(sinks) {}

Status DeviceRanges::reserve(uint32_t rows, uint32_t capacity) {
  constexpr std::string_view kWhat = "lists of keys";
  const auto longest = static_cast<uint32_t>(*std::max_element(windows_.begin(), windows_.end()));
  rows_ = rows;
  capacity_ = kernels::cuda::range_list_capacity(sinks_, longest, capacity);
  const size_t lists = windows_.size() * rows;
  REPRISE_CHECK(kernels::cuda::upload(std::span<const int32_t>(windows_), device_windows_, kWhat));
  REPRISE_CHECK(pages_.reserve(lists * capacity_, kWhat));
  REPRISE_CHECK(slots_.reserve(lists * capacity_, kWhat));
  return keys_.reserve(lists, kWhat);
}

Status DeviceRanges::list(const DeviceRows& rows, cudaStream_t stream) const {
  kernels::cuda::RangeLists args;
  args.tables = rows.tables;
  args.positions = rows.positions;
  args.layers = static_cast<uint32_t>(windows_.size());
  args.table_rows = rows.table_rows;
  args.capacity = rows.capacity;
  args.count = rows.decode_rows;
  args.windows = device_windows_.data();
  args.sinks = static_cast<int32_t>(sinks_);
  args.pages = pages_.data();
  args.slots = slots_.data();
  args.keys = keys_.data();
  args.list_rows = rows_;
  args.list_capacity = capacity_;
  REPRISE_CUDA(kernels::cuda::range_lists(args, stream), "listing keys");
  return {};
}

kernels::cuda::KeyLists DeviceRanges::lists(uint32_t layer, uint32_t first) const {
  const size_t list = size_t{layer} * rows_ + first, at = list * capacity_;
  return {pages_.data() + at, slots_.data() + at, keys_.data() + list, 1, capacity_};
}

uint32_t DeviceRanges::sink_pages() const {
  return (sinks_ + kernels::cuda::kPageTokens - 1) / kernels::cuda::kPageTokens;
}

}  // namespace reprise
