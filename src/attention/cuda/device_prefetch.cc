// The part of the executor that brings pages from the host's memory before they are read.
#include <algorithm>
#include <numeric>
#include <utility>

#include "attention/cuda/device_executor.h"
#include "base/try.h"
#include "kernels/cuda/page_copy.h"

namespace reprise {

bool DeviceExecutor::has_hot_pages(const DeviceGroup& group, uint32_t layer) const {
  return memory_.hot() != nullptr && group.first < rows_.decode_rows && group.policy != nullptr &&
         group.policy->chooses_pages() && config_.window[layer] == 0 &&
         !group.policy->leaves_alone(layer);
}

Status DeviceExecutor::find_hot_pages(const DeviceGroup& group, const DeviceQueries& queries,
                                      DeviceRead& what, cudaStream_t stream) {
  REPRISE_CHECK(memory_.hot()->find(queries.layer, group.first, group.count,
                                    limits_.prefetch == Prefetch::kToken, what.lists, stream));
  if (!brings_next_layer(limits_.prefetch)) return {};
  return expect_next_layer(group, queries, stream);
}

/// What the next layer would choose with this one's queries. Nothing else uses the policy's lists
/// meanwhile: their pages were looked up, and no other group has the policy.
Status DeviceExecutor::expect_next_layer(const DeviceGroup& group, DeviceQueries queries,
                                         cudaStream_t stream) {
  HotPages& hot = *memory_.hot();
  const uint32_t next = ++queries.layer;
  const auto users = std::ranges::count(rows_.groups, group.policy, &DeviceGroup::policy);
  if (next == config_.n_layer || users > 1 || !has_hot_pages(group, next)) return {};
  queries.guess = true;
  queries.pages = rows_.table(next) + size_t{group.first} * rows_.capacity;
  REPRISE_CHECK(hot.follow(stream));
  if (limits_.prefetch == Prefetch::kLayerOnce) REPRISE_CHECK(hot.forget(next));
  DeviceRead what;
  REPRISE_CHECK(group.policy->select(queries, what, hot.stream()));
  REPRISE_CHECK(hot.expect(next, group.count, what.lists, 0));
  return hot.fetch(next, 0, false);
}

bool DeviceExecutor::expects_token(const DeviceGroup& group) const {
  return memory_.hot() != nullptr && limits_.prefetch == Prefetch::kToken &&
         group.policy->chooses_pages();
}

/// After all groups of some layers: what is brought takes the place of what they may have read. The
/// pass is let go of once for all of them, as launches on both sides of that do not overlap.
Status DeviceExecutor::expect_next_token(uint32_t end, cudaStream_t stream) {
  if (memory_.hot() == nullptr) return {};
  if (end % HotPages::kListLayers != 0 && end != config_.n_layer) return {};
  bool follows = false;
  for (uint32_t layer = (end - 1) / HotPages::kListLayers * HotPages::kListLayers; layer < end;
       ++layer) {
    const auto asks = [&](const DeviceGroup& group) {
      return has_hot_pages(group, layer) && expects_token(group);
    };
    if (!std::any_of(rows_.groups.begin(), rows_.groups.end(), asks)) continue;
    if (!std::exchange(follows, true)) REPRISE_CHECK(memory_.hot()->follow(stream));
    uint32_t ahead = 0;
    for (const DeviceGroup& group : rows_.groups) {
      if (!asks(group) || !group.policy->learns()) continue;
      ahead = 1;
      REPRISE_CHECK(expect_next_token(layer, group));
    }
    REPRISE_CHECK(memory_.hot()->fetch(layer, ahead, ahead == 0));
  }
  return {};
}

Status DeviceExecutor::expect_next_token(uint32_t layer, const DeviceGroup& group) {
  HotPages& hot = *memory_.hot();
  const DeviceQueries queries = queries_of(layer, group);
  const DeviceRead& read = read_of(layer, group);
  REPRISE_CHECK(group.policy->observe(queries, read, lse_of(layer, group), hot.stream()));
  REPRISE_CHECK(group.policy->learn(queries, 1, hot.stream()));
  DeviceRead next;
  REPRISE_CHECK(group.policy->predict(queries, next, hot.stream()));
  return hot.expect(layer, group.count, next.lists, 1);
}

Status DeviceExecutor::reserve_copies(uint32_t capacity) {
  constexpr std::string_view kWhat = "copies of pages";
  std::vector<uint32_t> ids(capacity);
  std::iota(ids.begin(), ids.end(), 0u);
  REPRISE_CHECK(kernels::cuda::upload(std::span<const uint32_t>(ids), copy_ids_, kWhat));
  return copies_.reserve(capacity * memory_.page_bytes(), kWhat);
}

Status DeviceExecutor::bring_pages(uint32_t step, kernels::cuda::PagedPrefillArgs& args,
                                   cudaStream_t stream) {
  const kernels::cuda::PrefillRows& own = rows_.host_prefill[step - rows_.decode_rows];
  const uint32_t keys = static_cast<uint32_t>(own.position) + own.count;
  const uint32_t pages = (keys + kernels::cuda::kPageTokens - 1) / kernels::cuda::kPageTokens;
  REPRISE_CUDA(kernels::cuda::gather_pages(kv_.pages, memory_.page_bytes(), args.pages, pages,
                                           copies_.data(), stream),
               "bringing pages");
  args.kv.pages = copies_.data();
  args.pages = copy_ids_.data();
  return {};
}

Status DeviceExecutor::end(cudaStream_t stream) {
  if (learning_) {
    REPRISE_CHECK(learned_.record(learn_stream_.get()));
    REPRISE_CHECK(learned_.hold(stream));
  }
  return memory_.hot() != nullptr ? memory_.hot()->end(stream) : Status();
}

}  // namespace reprise
