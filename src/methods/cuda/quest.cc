#include "methods/cuda/quest.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {
namespace {

constexpr uint32_t kTokens = kernels::cuda::kPageTokens;

// Before the page of the row at a position.
uint64_t full_pages(int32_t position) { return static_cast<uint32_t>(position) / kTokens; }

}  // namespace

DeviceQuest::DeviceQuest(const QuestOptions& options, const ModelConfig& config)
    : budget_pages_(options.budget / kTokens),
      sink_pages_((options.sink + kTokens - 1) / kTokens),
      n_kv_head_(config.n_kv_head),
      head_dim_(config.head_dim) {}

Status DeviceQuest::reserve(const DeviceRoom& room) {
  const size_t lists = size_t{room.sequences} * n_kv_head_;
  list_capacity_ = std::min(budget_pages_, room.capacity);
  pool_pages_ = room.pool_pages;
  REPRISE_CHECK(bounds_.reserve(pool_pages_ * n_kv_head_ * 2 * head_dim_, "bounds of pages"));
  REPRISE_CHECK(scores_.reserve(lists * room.capacity, "scores of pages"));
  REPRISE_CHECK(lists_.reserve(lists * list_capacity_, "lists of keys"));
  return keys_.reserve(lists, "lists of keys");
}

Status DeviceQuest::adopt(const kernels::cuda::PagedKv& kv, cudaStream_t stream) {
  REPRISE_CUDA(kernels::cuda::bound_all_pages(kv, pool_pages_, bounds_.data(), stream),
               "bounding pages");
  return {};
}

Status DeviceQuest::after_store(const DeviceStored& stored, cudaStream_t stream) {
  kernels::cuda::PageBoundsArgs args;
  args.kv = stored.kv;
  args.positions = stored.positions;
  args.sequences = stored.sequences;
  args.rows = stored.rows;
  args.pages = stored.pages;
  args.capacity = stored.capacity;
  args.bounds = bounds_.data();
  REPRISE_CUDA(kernels::cuda::update_page_bounds(args, stream), "bounding pages");
  return {};
}

Status DeviceQuest::select(const DeviceQueries& queries, std::vector<DevicePart>& parts,
                           cudaStream_t stream) {
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
  REPRISE_CUDA(kernels::cuda::score_pages(score, stream), "scoring pages");
  kernels::cuda::TopPagesArgs top;
  top.rows = rows;
  top.n_kv_head = n_kv_head_;
  top.sink_pages = sink_pages_;
  top.scores = scores_.data();
  top.lists = lists_.data();
  top.keys = keys_.data();
  top.list_capacity = list_capacity_;
  REPRISE_CUDA(kernels::cuda::top_pages(top, stream), "choosing pages");
  parts.emplace_back().lists = {top.lists, nullptr, top.keys, n_kv_head_, list_capacity_};
  return {};
}

uint64_t DeviceQuest::keys_read(int32_t position) const {
  const uint64_t others = std::min<uint64_t>(full_pages(position), budget_pages_ - 1);
  return others * kTokens + static_cast<uint32_t>(position) % kTokens + 1;
}

uint64_t DeviceQuest::index_bytes_read(int32_t position) const {
  const uint64_t pages = full_pages(position);
  if (pages < budget_pages_) return 0;
  return pages * n_kv_head_ * 2 * head_dim_ * sizeof(__nv_bfloat16);
}

}  // namespace reprise
