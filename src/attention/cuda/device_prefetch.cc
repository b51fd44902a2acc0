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

bool DeviceExecutor::finds_early(const DeviceGroup& group, uint32_t layer) const {
  return !brings_next_layer(limits_.prefetch) && has_hot_pages(group, layer) &&
         group.policy->chooses_early(group, layer);
}

Status DeviceExecutor::find_early_pages(cudaStream_t stream) {
  for (const DeviceGroup& group : rows_.groups) {
    std::vector<LayerLists> known;
    for (uint32_t layer = 0; layer < config_.n_layer; ++layer) {
      if (!finds_early(group, layer)) continue;
      REPRISE_CHECK(memory_.await(layer));  // slots of what arrives are not forgotten yet
      DeviceRead what;
      REPRISE_CHECK(group.policy->select(queries_of(layer, group), what, stream));
      known.push_back({layer, what.lists});
    }
    if (known.empty()) continue;
    REPRISE_CHECK(memory_.hot()->find(known, group.first, group.count,
                                      limits_.prefetch == Prefetch::kToken, stream));
  }
  return {};
}

Status DeviceExecutor::find_hot_pages(const DeviceGroup& group, const DeviceQueries& queries,
                                      DeviceRead& what, cudaStream_t stream) {
  HotPages& hot = *memory_.hot();
  if (!finds_early(group, queries.layer)) {
    const LayerLists own = {queries.layer, what.lists};
    what.known = false;
    REPRISE_CHECK(hot.find({&own, 1}, group.first, group.count,
                           limits_.prefetch == Prefetch::kToken, stream));
  }
  what.lists.pages = hot.found(queries.layer, group.first);
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
  const LayerLists wanted = {next, what.lists};
  REPRISE_CHECK(hot.expect({&wanted, 1}, group.count, 0));
  return hot.fetch({&next, 1}, 0, false);
}

bool DeviceExecutor::expects_token(const DeviceGroup& group) const {
  return memory_.hot() != nullptr && limits_.prefetch == Prefetch::kToken &&
         group.policy->chooses_pages();
}

Status DeviceExecutor::expect_rows(const DeviceGroup& group, uint32_t first, uint32_t end) {
  HotPages& hot = *memory_.hot();
  DeviceRead next[DevicePolicy::kPredictedLayers];
  const DeviceQueries queries = read_of(first, group);
  REPRISE_CHECK(group.policy->learn(queries, end - first, hot.stream()));
  REPRISE_CHECK(group.policy->predict(queries, std::span(next, end - first), hot.stream()));
  std::vector<LayerLists> wanted;
  for (uint32_t layer = first; layer < end; ++layer) {
    if (has_hot_pages(group, layer)) wanted.push_back({layer, next[layer - first].lists});
  }
  return hot.expect(wanted, group.count, 1);
}

/// After all groups of some layers: what is brought takes the place of what they may have read. The
/// pass is let go of once for all of them, as launches on both sides of that do not overlap.
Status DeviceExecutor::expect_next_token(uint32_t end, cudaStream_t stream) {
  constexpr uint32_t kLayers = DevicePolicy::kPredictedLayers;
  if (memory_.hot() == nullptr || (end % kLayers != 0 && end != config_.n_layer)) return {};
  HotPages& hot = *memory_.hot();
  const uint32_t first = (end - 1) / kLayers * kLayers;
  std::vector<uint32_t> known, read;  // layers whose next lists some group knows, and the others
  for (uint32_t layer = first; layer < end; ++layer) {
    const auto reads = [&](bool knows) {
      return std::ranges::any_of(rows_.groups, [&](const DeviceGroup& group) {
        return has_hot_pages(group, layer) && expects_token(group) &&
               group.policy->learns() == knows;
      });
    };
    if (reads(true)) {
      known.push_back(layer);
    } else if (reads(false)) {
      read.push_back(layer);
    }
  }
  if (known.empty() && read.empty()) return {};
  REPRISE_CHECK(hot.follow(stream));
  for (const DeviceGroup& group : rows_.groups) {
    const bool reads = group.first < rows_.decode_rows && group.policy != nullptr;
    if (!reads || !expects_token(group) || !group.policy->learns()) continue;
    REPRISE_CHECK(expect_rows(group, first, end));
  }
  REPRISE_CHECK(hot.fetch(known, 1, false));
  return hot.fetch(read, 0, true);
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
