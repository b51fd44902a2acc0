#include "kv/cuda/hot_pages.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "hot pages";
constexpr uint32_t kLateParts = 64;  // of a KV head and layer, while others are computed

}  // namespace

HotPages::HotPages(const Size& size, std::byte* pages) : size_(size), pages_(pages) {}

HotPages::~HotPages() {
  if (stream_.get() != nullptr) cudaStreamSynchronize(stream_.get());
}

Result<std::unique_ptr<HotPages>> HotPages::create(const Size& size, std::byte* pages) {
  std::unique_ptr<HotPages> made(new HotPages(size, pages));
  REPRISE_CHECK(made->allocate());
  return made;
}

Status HotPages::allocate() {
  REPRISE_TRY(stream_, CudaStream::create(true));
  REPRISE_TRY(asked_, CudaEvent::create());
  REPRISE_TRY(brought_, CudaEvent::create());
  const uint32_t layer_slots = size_.slots / size_.layers;
  const size_t lists = size_t{size_.layers} * size_.n_kv_head, slots = lists * layer_slots;
  const size_t host_parts = size_t{size_.host_frames} * size_.n_kv_head;
  for (DeviceBuffer<uint32_t>* buffer : {&held_, &used_, &wanted_, &given_}) {
    REPRISE_CHECK(buffer->reserve(slots, kWhat));
  }
  REPRISE_CHECK(slots_.reserve(host_parts, kWhat));
  REPRISE_CHECK(wants_.reserve(lists, kWhat));
  REPRISE_CHECK(gifts_.reserve(lists, kWhat));
  REPRISE_CHECK(step_.reserve(1, kWhat));
  REPRISE_CHECK(counts_.reserve(1, kWhat));
  REPRISE_CHECK(counted_.reserve(1, kWhat));
  static_assert(kNoSlot == ~0u);  // all bits
  REPRISE_CUDA(cudaMemset(slots_.data(), 0xff, host_parts * sizeof(uint32_t)), kWhat);
  REPRISE_CUDA(cudaMemset(held_.data(), 0xff, slots * sizeof(uint32_t)), kWhat);
  REPRISE_CUDA(cudaStreamSynchronize(nullptr), kWhat);
  parts_.n_layer = size_.layers;
  parts_.n_kv_head = size_.n_kv_head;
  parts_.first_host = size_.first_host;
  parts_.host_frames = size_.host_frames;
  parts_.first_slot = size_.first_slot;
  parts_.layer_slots = layer_slots;
  parts_.slots = slots_.data();
  parts_.held = held_.data();
  parts_.used = used_.data();
  parts_.wanted = wanted_.data();
  parts_.given = given_.data();
  parts_.wants = wants_.data();
  parts_.gifts = gifts_.data();
  parts_.step = step_.data();
  parts_.counts = counts_.data();
  return {};
}

Status HotPages::reserve(uint32_t sequences, uint32_t capacity) {
  sequences_ = sequences;
  capacity_ = capacity;
  const size_t lists = size_t{size_.layers} * sequences * size_.n_kv_head;
  return found_.reserve(lists * capacity, "lists of keys");
}

Status HotPages::begin(const StoredRows& rows, cudaStream_t stream) {
  REPRISE_CUDA(begin_hot_step(parts_, rows, stream), kWhat);
  return {};
}

Status HotPages::forget(const PageIds& pages, cudaStream_t stream) {
  REPRISE_CUDA(forget_hot_pages(parts_, pages, stream), kWhat);
  return {};
}

Status HotPages::look_up(std::span<const LayerLists> layers, HotLookUp args,
                         std::optional<uint32_t> found_row, cudaStream_t stream) {
  for (; !layers.empty(); layers = layers.subspan(args.layers)) {
    args.layers = static_cast<uint32_t>(std::min<size_t>(layers.size(), kHotLayers));
    for (uint32_t i = 0; i < args.layers; ++i) {
      const auto& [layer, lists] = layers[i];
      args.lists[i] = {layer, lists.capacity, lists.pages, lists.keys,
                       found_row ? found(layer, *found_row) : nullptr};
    }
    REPRISE_CUDA(look_up_hot_parts(parts_, args, stream), kWhat);
  }
  return {};
}

Status HotPages::find(std::span<const LayerLists> layers, uint32_t first_row, uint32_t rows,
                      bool fetch, cudaStream_t stream) {
  HotLookUp args;
  args.rows = rows;
  args.fetch = fetch;
  return look_up(layers, args, first_row, stream);
}

Status HotPages::follow(cudaStream_t passes) {
  follows_ = true;
  REPRISE_CHECK(asked_.record(passes));
  return asked_.hold(stream_.get());
}

Status HotPages::forget(uint32_t layer) {
  REPRISE_CUDA(forget_hot_layer(parts_, layer, stream_.get()), kWhat);
  return {};
}

Status HotPages::expect(std::span<const LayerLists> layers, uint32_t rows, uint32_t ahead) {
  HotLookUp args;
  args.rows = rows;
  args.fetch = true;
  args.ahead = ahead;
  return look_up(layers, args, {}, stream_.get());
}

Status HotPages::fetch(std::span<const uint32_t> layers, uint32_t ahead, bool late) {
  HotFetch args;
  args.ahead = ahead;
  args.most = late ? kLateParts : ~0u;
  args.pages = pages_;
  args.part_bytes = size_.part_bytes;
  for (; !layers.empty(); layers = layers.subspan(args.count)) {
    args.count = static_cast<uint32_t>(std::min<size_t>(layers.size(), kHotLayers));
    std::ranges::copy(layers.first(args.count), args.layers);
    REPRISE_CUDA(fetch_hot_parts(parts_, args, stream_.get()), kWhat);
  }
  return {};
}

Status HotPages::join(cudaStream_t passes) {
  if (!follows_) return {};
  follows_ = false;
  REPRISE_CHECK(brought_.record(stream_.get()));
  return brought_.hold(passes);
}

Status HotPages::end(cudaStream_t passes) {
  REPRISE_CHECK(join(passes));
  REPRISE_CUDA(cudaMemcpyAsync(counted_.data(), counts_.data(), sizeof(HotCounts),
                               cudaMemcpyDeviceToHost, passes),
               kWhat);
  return {};
}

KvPaging HotPages::paging() const {
  const HotCounts& counts = *counted_.data();
  KvPaging paging;
  paging.hits = counts.hits;
  paging.fetched = counts.misses;
  paging.prefetched = counts.fetched;
  paging.read_bytes = (counts.misses + counts.fetched) * size_.part_bytes;
  return paging;
}

}  // namespace reprise
