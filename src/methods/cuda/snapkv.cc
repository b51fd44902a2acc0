#include "methods/cuda/snapkv.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {

DeviceSnapKv::DeviceSnapKv(const SnapKvOptions& options, const ModelConfig& config)
    : DeviceEvicting(config, options.budget, 0), options_(options) {}

int32_t DeviceSnapKv::voters(const EvictingPolicy& host, int32_t prompt_end) const {
  return static_cast<const SnapKvPolicy&>(host).window(prompt_end);
}

std::optional<DeviceEvicting::Choice> DeviceSnapKv::choice(const EvictingPolicy& host,
                                                           const Kept& kept, int32_t end) const {
  const auto keys = static_cast<uint32_t>(kept.side + end - kept.begin);
  if (keys <= options_.budget) return std::nullopt;
  const auto window = static_cast<uint32_t>(voters(host, end));
  Choice choice;
  choice.candidates = keys - window;
  choice.chosen = options_.budget - window;
  choice.tail = window;
  choice.always = static_cast<uint32_t>(static_cast<const SnapKvPolicy&>(host).always());
  choice.next = {static_cast<int32_t>(options_.budget), end, end};
  return choice;
}

Status DeviceSnapKv::score(const Ranking& ranking, cudaStream_t stream) {
  kernels::cuda::PoolVotesArgs args;
  args.votes = votes_.data();
  args.n_head = config_.n_head;
  args.n_kv_head = config_.n_kv_head;
  args.keys = ranking.choice.candidates;
  args.stride = stride_;
  args.kernel = options_.kernel;
  args.average = options_.pool == "avg";
  args.largest_of_heads = options_.group == "max";
  args.scores = scores_.data();
  args.always = ranking.choice.always;
  REPRISE_CUDA(kernels::cuda::pool_votes(args, stream), "pooling votes");
  return {};
}

}  // namespace reprise
