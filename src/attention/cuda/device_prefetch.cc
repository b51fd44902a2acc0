// The part of the executor that brings pages from the host's memory before they are read.
#include <algorithm>
#include <numeric>

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

uint32_t DeviceExecutor::hot_layers(const DeviceGroup& group, uint32_t first, uint32_t end) const {
  uint32_t layers = 0;
  for (uint32_t layer = first; layer < end; ++layer) {
    if (has_hot_pages(group, layer)) layers |= 1u << (layer - first);
  }
  return layers;
}

/// After all groups of some layers: what is brought takes the place of what they may have read. The
/// pass is let go of once for all of them, as launches on both sides of that do not overlap.
Status DeviceExecutor::expect_next_token(uint32_t end, cudaStream_t stream) {
  constexpr uint32_t kLayers = DevicePolicy::kPredictedLayers;
  if (memory_.hot() == nullptr || (end % kLayers != 0 && end != config_.n_layer)) return {};
  HotPages& hot = *memory_.hot();
  const uint32_t first = (end - 1) / kLayers * kLayers;
  uint32_t read = 0, known = 0;  // layers that groups read, and of which they know the next lists
  for (const DeviceGroup& group : rows_.groups) {
    const uint32_t own = hot_layers(group, first, end);
    if (own == 0 || !expects_token(group)) continue;
    if (read == 0) REPRISE_CHECK(hot.follow(stream));
    read |= own;
    if (!group.policy->learns()) continue;
    known |= own;
    DeviceRead next[kLayers];
    const DeviceQueries queries = read_of(first, group);
    REPRISE_CHECK(group.policy->learn(queries, end - first, hot.stream()));
    REPRISE_CHECK(group.policy->predict(queries, std::span(next, end - first), hot.stream()));
    for (uint32_t i = 0; i < end - first; ++i) {
      if ((own >> i & 1) == 0) continue;
      REPRISE_CHECK(hot.expect(first + i, group.count, next[i].lists, 1));
    }
  }
  for (uint32_t i = 0; i < end - first; ++i) {
    const uint32_t ahead = known >> i & 1;
    if ((read >> i & 1) != 0) REPRISE_CHECK(hot.fetch(first + i, ahead, ahead == 0));
  }
  return {};
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
