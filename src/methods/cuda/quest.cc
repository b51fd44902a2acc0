#include "methods/cuda/quest.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {
namespace {

constexpr uint32_t kTokens = kernels::cuda::kPageTokens;

// Before the page of the row at a position.
uint64_t full_pages(int32_t position) { return static_cast<uint32_t>(position) / kTokens; }

}  // namespace

DeviceQuest::DeviceQuest(const QuestOptions& options, const ModelConfig& config, bool numbered)
    : budget_pages_(options.budget / kTokens),
      sink_pages_((options.sink + kTokens - 1) / kTokens),
      n_layer_(config.n_layer),
      n_kv_head_(config.n_kv_head),
      head_dim_(config.head_dim),
      numbered_(numbered) {}

Status DeviceQuest::reserve(const DeviceRoom& room) {
  const size_t lists = size_t{room.sequences} * n_kv_head_;
  list_capacity_ = std::min(budget_pages_, room.capacity);
  pool_pages_ = room.pool_pages;
  REPRISE_CHECK(bounds_.reserve(pool_pages_ * n_kv_head_ * 2 * head_dim_, "bounds of pages"));
  REPRISE_CHECK(scores_.reserve(lists * room.capacity, "scores of pages"));
  REPRISE_CHECK(lists_.reserve(lists * list_capacity_, "lists of keys"));
  if (numbered_) REPRISE_CHECK(numbers_.reserve(lists * list_capacity_, "lists of keys"));
  return keys_.reserve(lists, "lists of keys");
}

Status DeviceQuest::adopt(const PagedKv& kv, const kernels::cuda::PageIds& pages,
                          cudaStream_t stream) {
  REPRISE_CUDA(kernels::cuda::bound_pages(kv, pages, bounds_.data(), stream), "bounding pages");
  return {};
}

kernels::cuda::PageBoundsArgs DeviceQuest::bounds_args(const DeviceRows& rows,
                                                       const PagedKv& kv) const {
  kernels::cuda::PageBoundsArgs args;
  args.kv = kv;
  args.positions = rows.positions;
  args.sequences = rows.sequences;
  args.rows = rows.rows;
  args.table_rows = rows.table_rows;
  args.capacity = rows.capacity;
  args.bounds = bounds_.data();
  return args;
}

// Nobody scores a page before the row after it: pages that decode rows filled wait for that.
Status DeviceQuest::begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) {
  kernels::cuda::PageBoundsArgs args = bounds_args(rows, kv);
  args.pages = rows.tables;
  args.layers = n_layer_;
  args.before = true;
  REPRISE_CUDA(kernels::cuda::update_page_bounds(args, stream), "bounding pages");
  return {};
}

Status DeviceQuest::after_prefill_store(const DeviceRows& rows, uint32_t layer, const PagedKv& kv,
                                        cudaStream_t stream) {
  kernels::cuda::PageBoundsArgs args = bounds_args(rows, kv);
  args.pages = rows.table(layer);
  REPRISE_CUDA(kernels::cuda::update_page_bounds(args, stream), "bounding pages");
  return {};
}

Status DeviceQuest::select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t stream) {
  const kernels::cuda::PageRows rows = {queries.positions, queries.pages, queries.count,
                                        queries.capacity, budget_pages_};
  kernels::cuda::PageScoreArgs score;
  score.rows = rows;
  score.bounds = bounds_.data();
  score.n_head = queries.n_head;
  score.n_kv_head = n_kv_head_;
  score.head_dim = head_dim_;
  score.q = queries.q;
  score.scores = scores_.data();
  kernels::cuda::TopPagesArgs top;
  top.rows = rows;
  top.n_kv_head = n_kv_head_;
  top.sink_pages = sink_pages_;
  top.scores = scores_.data();
  top.lists = lists_.data();
  top.numbers = numbered_ ? numbers_.data() : nullptr;
  top.keys = keys_.data();
  top.list_capacity = list_capacity_;
  REPRISE_CUDA(kernels::cuda::score_pages(score, stream), "scoring pages");
  REPRISE_CUDA(kernels::cuda::top_pages(top, stream), "choosing pages");
  read.lists = {top.lists, nullptr, top.keys, n_kv_head_, list_capacity_};
  read.numbers = top.numbers;
  return {};
}

uint64_t DeviceQuest::keys_read(const DeviceRow& row) const {
  const uint64_t others = std::min<uint64_t>(full_pages(row.position), budget_pages_ - 1);
  return others * kTokens + static_cast<uint32_t>(row.position) % kTokens + 1;
}

uint64_t DeviceQuest::index_bytes_read(const DeviceRow& row) const {
  const uint64_t pages = full_pages(row.position);
  if (pages < budget_pages_) return 0;
  return pages * n_kv_head_ * 2 * head_dim_ * sizeof(__nv_bfloat16);
}

}  // namespace reprise
