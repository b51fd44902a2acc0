// What happens to CSAttention's lists on a device outside of captured steps.
#include <algorithm>

#include "base/try.h"
#include "methods/csattention/query_samples.h"
#include "methods/cuda/csattention_lists.h"
#include "methods/find_policy.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "listing keys";

}  // namespace

Status DeviceCentroidLists::plan(const DevicePlan& plan, cudaStream_t stream) {
  steps_.assign(plan.steps.size(), {});
  bool changed = false;
  for (const DeviceGroup& group : plan.groups) {
    if (group.policy != this) continue;
    for (uint32_t i = group.first; i < group.first + group.count; ++i) {
      const SequenceStep& step = plan.steps[i];
      const int32_t position = plan.rows[step.first_row].position;
      Step& own = steps_[i];
      own = {find_policy<CsAttentionPolicy>(*plan.acting[i]), nullptr, step.prompt_end};
      REPRISE_TRY(own.index, index_of(*own.host, stream));
      if (step.phase == kernels::Phase::kPrefill) {
        REPRISE_CHECK(plan_prompt(step, position, own));
        continue;
      }
      const ListIndex shown = plan_row(position, own);
      changed = changed || shown != host_rows_[i];
      host_rows_[i] = shown;
    }
  }
  return changed ? sent_rows_.send(host_rows_, plan.turn, stream) : Status();
}

Result<DeviceListIndex*> DeviceCentroidLists::index_of(const CsAttentionPolicy& host,
                                                       cudaStream_t stream) {
  CsAttentionPolicy::Device& device = host.device();
  if (device.state == nullptr || device.state.use_count() > 1) {
    auto own = std::make_shared<DeviceListIndex>(shape_, layers_.places);
    if (const auto* from = static_cast<const DeviceListIndex*>(device.state.get())) {
      REPRISE_TRY(const bool has_room, own->copy(*from, device.truncated, stream));
      if (!has_room) ++device.fallbacks;
    } else {
      host.taken_over();  // what a host listed is not used
    }
    device.state = std::move(own);
  }
  auto& index = static_cast<DeviceListIndex&>(*device.state);
  REPRISE_CHECK(device.forget([&](int32_t length) { return index.truncate(length, stream); }));
  return &index;
}

// Room for what after_prefill() will write.
Status DeviceCentroidLists::plan_prompt(const SequenceStep& step, int32_t position, Step& planned) {
  const CsAttentionPolicy& host = *planned.host;
  if (layers_.layers.empty() || step.prompt_end <= host.budget_at(step.prompt_end)) return {};
  if (!host.wants_index(layers_.layers.front(), step.prompt_end)) return {};
  const int32_t end = position + static_cast<int32_t>(step.rows);
  const QueryWindow window = host.observed(step.prompt_end);
  bool has_room = true;
  if (position < window.end && end > window.first) {
    REPRISE_TRY(has_room, planned.index->reserve_samples(QuerySamples::room(config_)));
  }
  if (has_room && end == step.prompt_end) {
    uint32_t stride = 0;
    for (const uint32_t layer : layers_.layers) {
      stride = std::max(stride, list_length(host.recent_end(layer, end)));
    }
    REPRISE_TRY(has_room, planned.index->reserve(stride));
  }
  if (has_room) return {};
  planned.index = nullptr;
  ++host.device().fallbacks;
  return {};
}

ListIndex DeviceCentroidLists::plan_row(int32_t position, const Step& planned) const {
  DeviceListIndex& index = *planned.index;
  if (!index.complete()) return {};
  if (index.has_samples()) index.drop_samples();
  for (const uint32_t layer : layers_.layers) {
    if (!code_range(rules_, layer, position).chooses) continue;
    int32_t& listed = index.layers()[layers_.places[layer]].listed;
    listed = std::max(listed, planned.host->recent_end(layer, position + 1));
  }
  return index.view();
}

Status DeviceCentroidLists::sample(const Step& step, const DevicePrompt& prompt,
                                   cudaStream_t stream) const {
  const QueryWindow window = step.host->observed(step.prompt_end);
  const uint32_t at = layers_.places[prompt.layer];
  DeviceListIndex::Layer& own = step.index->layers()[at];
  const int32_t begin = prompt.rows.position;
  const int32_t end = std::min(window.end, begin + static_cast<int32_t>(prompt.rows.count));
  const size_t width = size_t{shape_.n_head} * shape_.head_dim;
  const auto count = static_cast<size_t>(window.end - window.first);
  const size_t quota = std::min(QuerySamples::room(config_), count);
  const auto room = static_cast<int32_t>(QuerySamples::room(config_));
  const auto chosen = [&](int32_t position) {
    return position < end && QuerySamples::chooses(position - window.first, quota, count);
  };
  const int32_t first = std::max(window.first, begin);
  if (own.seen != first) own.sampled = 0;  // of a prompt that was given up
  for (int32_t position = first; position < end;) {
    int32_t next = position;
    while (chosen(next) && own.sampled + next - position < room) ++next;
    const auto run = static_cast<size_t>(next - position);
    if (run > 0) {
      REPRISE_CUDA(
          cudaMemcpyAsync(step.index->samples(at) + static_cast<size_t>(own.sampled) * width,
                          prompt.q + static_cast<size_t>(position - begin) * width,
                          run * width * sizeof(__nv_bfloat16), cudaMemcpyDeviceToDevice, stream),
          "looking at queries");
    }
    own.sampled += next - position;
    own.seen = std::max(next, position + 1);
    position = own.seen;
  }
  return {};
}

Status DeviceCentroidLists::build(const Step& step, const DevicePrompt& prompt, int32_t end,
                                  cudaStream_t stream) const {
  const uint32_t at = layers_.places[prompt.layer];
  DeviceListIndex::Layer& own = step.index->layers()[at];
  TrainCentroidsArgs train;
  train.shape = shape_;
  train.index = step.index->view();
  train.layer = at;
  train.q = step.index->samples(at);
  train.rows = static_cast<uint32_t>(own.sampled);
  train.iterations = options_.iterations;
  train.draws = draws_.data();
  train.points = points_.data();
  REPRISE_CUDA(train_centroids(train, stream), "making centroids");
  const int32_t recent = step.host->recent_end(prompt.layer, end);
  FillListsArgs fill;
  fill.kv = prompt.kv;
  fill.shape = shape_;
  fill.index = train.index;
  fill.layer = at;
  fill.pages = prompt.pages;
  fill.end = static_cast<uint32_t>(recent);
  fill.length = list_length(recent);
  fill.scale = config_.attention_scale;
  fill.products = products_.data();
  fill.product_room = products_.size();
  REPRISE_CUDA(fill_lists(fill, stream), kWhat);
  own = {step.host->observed(step.prompt_end).end, recent, 0, 0};
  return {};
}

Status DeviceCentroidLists::after_prefill(const DevicePrompt& prompt, cudaStream_t stream) {
  const Step& step = steps_[prompt.step];
  if (step.index == nullptr) return {};
  if (step.prompt_end <= step.host->budget_at(step.prompt_end)) return {};
  const int32_t end = prompt.rows.position + static_cast<int32_t>(prompt.rows.count);
  if (step.host->wants_index(prompt.layer, step.prompt_end)) {
    REPRISE_CHECK(sample(step, prompt, stream));
    return end < step.prompt_end ? Status() : build(step, prompt, end, stream);
  }
  const uint32_t at = layers_.places[prompt.layer];
  DeviceListIndex::Layer& own = step.index->layers()[at];
  const int32_t recent = step.host->recent_end(prompt.layer, end);
  if (own.built == 0 || recent <= own.listed) return {};
  OfferKeysArgs args;
  args.kv = prompt.kv;
  args.shape = shape_;
  args.index = step.index->view();
  args.layer = at;
  args.pages = prompt.pages;
  args.begin = own.listed;
  args.end = recent;
  args.scale = config_.attention_scale;
  REPRISE_CUDA(offer_keys(args, stream), kWhat);
  own.listed = recent;
  return {};
}

}  // namespace reprise
