#include "methods/cuda/code_pool.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "an index of keys";
constexpr auto kTokens = static_cast<int32_t>(kernels::cuda::kPageTokens);
constexpr auto kBlock = static_cast<int32_t>(kCodeBlock);

}  // namespace

Status CodePool::reserve(const CodeShape& shape, uint64_t tokens, uint32_t sequences) {
  if (!owners_.empty()) return {};
  shape_ = shape;
  const uint64_t blocks = tokens / kCodeBlock + sequences;
  REPRISE_CHECK(codes_.reserve(blocks * shape.block_bytes(), "codes of keys"));
  owners_.assign(blocks, 0);
  for (uint64_t block = blocks; block-- > 0;) free_.push_back(static_cast<uint32_t>(block));
  return {};
}

std::optional<uint32_t> CodePool::take() {
  while (free_.empty()) {
    DeviceCodeIndex* idle = nullptr;
    for (DeviceCodeIndex* index : indexes_) {
      if (index->used() == pass_ || index->blocks().empty()) continue;
      if (idle == nullptr || index->used() < idle->used()) idle = index;
    }
    if (idle == nullptr) return std::nullopt;
    idle->clear();
  }
  const uint32_t block = free_.back();
  free_.pop_back();
  owners_[block] = 1;
  return block;
}

void CodePool::release(uint32_t block) {
  if (--owners_[block] == 0) free_.push_back(block);
}

Status CodePool::copy(uint32_t from, uint32_t to, cudaStream_t stream) const {
  const size_t bytes = shape_.block_bytes();
  REPRISE_CUDA(cudaMemcpyAsync(codes_.data() + to * bytes, codes_.data() + from * bytes, bytes,
                               cudaMemcpyDeviceToDevice, stream),
               kWhat);
  return {};
}

DeviceCodeIndex::DeviceCodeIndex(std::shared_ptr<CodePool> pool, std::vector<uint32_t> index)
    : pool_(std::move(pool)),
      index_(std::move(index)),
      layers_(pool_->shape().layers),
      stamp_(pool_->stamp()) {
  pool_->add(this);
  use();
}

DeviceCodeIndex::~DeviceCodeIndex() {
  drop_blocks(0);
  pool_->remove(this);
}

uint64_t DeviceCodeIndex::bytes() const {
  if (blocks_.empty()) return 0;
  return blocks_.size() * pool_->shape().block_bytes() +
         pool_->shape().book_floats() * sizeof(float) + queries_.size() * sizeof(__nv_bfloat16) +
         picks_.size() * sizeof(uint32_t);
}

Status DeviceCodeIndex::create(const DeviceCodeIndex* from, cudaStream_t stream) {
  REPRISE_CHECK(moments_.reserve(pool_->shape().moments(), kWhat));
  REPRISE_CHECK(coded_.reserve(layers_.size(), kWhat));
  if (from == nullptr) return {};
  layers_ = from->layers_;
  blocks_ = from->blocks_;
  for (const uint32_t block : blocks_) pool_->share(block);
  book_ = from->book_;
  REPRISE_CUDA(cudaMemcpyAsync(moments_.data(), from->moments_.data(),
                               moments_.size() * sizeof(float), cudaMemcpyDeviceToDevice, stream),
               kWhat);
  REPRISE_CHECK(copy_searches(*from, stream));
  return send_coded(stream);
}

Status DeviceCodeIndex::own_searches() {
  const size_t picks = layers_.size() * pool_->search_pages();
  if (picks_.size() == picks) return {};
  picks_ = {};
  searched_ = {};
  for (Layer& layer : layers_) layer.searched = 0;
  stamp_ = pool_->stamp();
  REPRISE_CHECK(searched_.reserve(layers_.size(), kWhat));
  REPRISE_CHECK(queries_.reserve(layers_.size() * pool_->search_queries(), kWhat));
  return picks_.reserve(picks, kWhat);  // last: they tell that all of it is there
}

Status DeviceCodeIndex::copy_searches(const DeviceCodeIndex& from, cudaStream_t stream) {
  REPRISE_CHECK(own_searches());
  if (picks_.size() != from.picks_.size()) return {};
  const auto copy = [&](auto& to, const auto& source) -> Status {
    const size_t bytes = source.size() * sizeof(*source.data());
    if (bytes == 0) return {};
    REPRISE_CUDA(cudaMemcpyAsync(to.data(), source.data(), bytes, cudaMemcpyDeviceToDevice, stream),
                 kWhat);
    return {};
  };
  for (size_t at = 0; at < layers_.size(); ++at) layers_[at].searched = from.layers_[at].searched;
  REPRISE_CHECK(copy(searched_, from.searched_));
  REPRISE_CHECK(copy(queries_, from.queries_));
  return copy(picks_, from.picks_);
}

Status DeviceCodeIndex::truncate(int32_t length, cudaStream_t stream) {
  int32_t most = 0;
  for (uint32_t at = 0; at < layers_.size(); ++at) {
    Layer& layer = layers_[at];
    if (layer.seen > length) {
      layer.seen = 0;
      REPRISE_CHECK(clear_moments(at, stream));
    }
    if (layer.built > length) layer.built = layer.coded = 0;
    if (layer.searched > length) layer.searched = 0;
    layer.coded = std::min(layer.coded, length / kTokens * kTokens);
    most = std::max(most, layer.coded);
  }
  drop_blocks(static_cast<size_t>((most + kBlock - 1) / kBlock));
  if (picks_.size() > 0) {
    const auto layers = static_cast<uint32_t>(layers_.size());
    REPRISE_CUDA(forget_searches(searched_.data(), layers, length, stream), kWhat);
  }
  return send_coded(stream);
}

Result<bool> DeviceCodeIndex::own_blocks(int32_t first, int32_t end, cudaStream_t stream) {
  const auto wanted = static_cast<size_t>((end + kBlock - 1) / kBlock);
  for (auto i = static_cast<size_t>(first / kBlock); i < wanted; ++i) {
    if (i < blocks_.size() && !pool_->is_shared(blocks_[i])) continue;
    const std::optional<uint32_t> own = pool_->take();
    if (!own) {
      clear();
      return false;
    }
    stamp_ = pool_->stamp();
    if (i >= blocks_.size()) {
      blocks_.push_back(*own);
      continue;
    }
    REPRISE_CHECK(pool_->copy(blocks_[i], *own, stream));
    pool_->release(blocks_[i]);
    blocks_[i] = *own;
  }
  return true;
}

Status DeviceCodeIndex::own_book(cudaStream_t stream) {
  if (book_ != nullptr && book_.use_count() == 1) return {};
  auto own = std::make_shared<Book>();
  REPRISE_CHECK(own->reserve(pool_->shape().book_floats(), kWhat));
  if (book_ != nullptr) {
    REPRISE_CUDA(cudaMemcpyAsync(own->data(), book_->data(), own->size() * sizeof(float),
                                 cudaMemcpyDeviceToDevice, stream),
                 kWhat);
  }
  book_ = std::move(own);
  stamp_ = pool_->stamp();
  return {};
}

Status DeviceCodeIndex::begin_layer(uint32_t at, int32_t built, cudaStream_t stream) {
  layers_[at] = {built, 0, 0, layers_[at].searched};
  stamp_ = pool_->stamp();
  return clear_moments(at, stream);
}

// The copy of memory that is not page-locked is staged before the call returns.
Status DeviceCodeIndex::send_coded(cudaStream_t stream) {
  std::vector<int32_t> pages;
  for (const Layer& layer : layers_) pages.push_back(layer.coded / kTokens);
  REPRISE_CUDA(cudaMemcpyAsync(coded_.data(), pages.data(), pages.size() * sizeof(int32_t),
                               cudaMemcpyHostToDevice, stream),
               kWhat);
  stamp_ = pool_->stamp();
  return {};
}

int32_t DeviceCodeIndex::least_coded() const {
  const auto least =
      std::min_element(layers_.begin(), layers_.end(),
                       [](const Layer& a, const Layer& b) { return a.coded < b.coded; });
  return least == layers_.end() ? 0 : least->coded;
}

void DeviceCodeIndex::drop_blocks(size_t from) {
  for (size_t i = from; i < blocks_.size(); ++i) pool_->release(blocks_[i]);
  blocks_.resize(std::min(from, blocks_.size()));
}

void DeviceCodeIndex::clear() {
  drop_blocks(0);
  for (Layer& layer : layers_) layer.built = layer.coded = 0;
  stamp_ = pool_->stamp();
}

Status DeviceCodeIndex::clear_moments(uint32_t at, cudaStream_t stream) const {
  const size_t size = pool_->shape().moments() / layers_.size();
  REPRISE_CUDA(cudaMemsetAsync(moments_.data() + at * size, 0, size * sizeof(float), stream),
               kWhat);
  return {};
}

}  // namespace reprise
