#include "engine/cuda/pass_tables.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/try.h"

namespace reprise {
namespace {

constexpr std::string_view kWhat = "page tables";
constexpr size_t kMinCapacity = 64, kMinRows = 4;  // pages, sequences

}  // namespace

Status PassTables::update(std::span<const SequenceStep> steps, uint32_t turn, cudaStream_t stream) {
  REPRISE_CHECK(grow(steps, stream));
  changes_.clear();
  for (uint32_t row = 0; row < steps.size(); ++row) collect(steps[row], row);
  auto& staged = staged_[turn];
  REPRISE_CHECK(staged.reserve(std::bit_ceil(changes_.size()), kWhat));
  std::copy(changes_.begin(), changes_.end(), staged.data());
  REPRISE_CUDA(kernels::cuda::apply_updates(staged.data(), static_cast<uint32_t>(changes_.size()),
                                            tables_.data(), stream),
               kWhat);
  return {};
}

void PassTables::shrink(uint32_t capacity) {
  capacity_ = capacity;
  known_.assign(rows_, {});
}

Status PassTables::grow(std::span<const SequenceStep> steps, cudaStream_t stream) {
  size_t pages = 0;
  for (const SequenceStep& step : steps) {
    for (uint32_t layer = 0; layer < n_layer_; ++layer) {
      pages = std::max(pages, step.kv->pages(layer).size());
    }
  }
  if (pages <= capacity_ && steps.size() <= rows_) return {};
  const size_t capacity = std::max<size_t>(capacity_, std::bit_ceil(std::max(pages, kMinCapacity)));
  const size_t rows = std::max<size_t>(rows_, std::bit_ceil(std::max(steps.size(), kMinRows)));
  if (capacity * rows * n_layer_ > std::numeric_limits<uint32_t>::max()) {
    return fail(ErrorCode::kOutOfMemory,
                "{} sequences of up to {} tokens are too many for one batch; lower --batch", rows,
                capacity * kPageTokens);
  }
  REPRISE_CUDA(cudaStreamSynchronize(stream), kWhat);  // passes that read the old tables
  kernels::cuda::DeviceBuffer<uint32_t> tables;  // beside the old ones, which stay without memory
  REPRISE_CHECK(tables.reserve(capacity * rows * n_layer_, kWhat));
  tables_ = std::move(tables);
  capacity_ = static_cast<uint32_t>(capacity);
  rows_ = static_cast<uint32_t>(rows);
  known_.assign(rows, {});
  return {};
}

void PassTables::collect(const SequenceStep& step, uint32_t row) {
  Known& known = known_[row];
  const PagePool& pool = step.kv->pool();
  if (known.version != step.kv->version() || known.moves != pool.moves()) {
    known = {step.kv->version(), pool.moves(), {}};
  }
  known.pages.resize(n_layer_);
  for (uint32_t layer = 0; layer < n_layer_; ++layer) {
    const auto pages = step.kv->pages(layer);
    const size_t first = (size_t{layer} * rows_ + row) * capacity_;
    for (size_t i = known.pages[layer]; i < pages.size(); ++i) {
      changes_.push_back({static_cast<uint32_t>(first + i), pool.frame(layer, pages[i])});
    }
    known.pages[layer] = pages.size();
  }
}

}  // namespace reprise
