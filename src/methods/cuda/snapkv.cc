#include "methods/cuda/snapkv.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {

DeviceSnapKv::DeviceSnapKv(const SnapKvOptions& options, const ModelConfig& config)
    : DeviceEvicting(config, options.budget, std::min(options.window, options.budget), 0),
      options_(options),
      window_(std::min(options.window, options.budget)) {}

std::optional<DeviceEvicting::Choice> DeviceSnapKv::choice(const Kept& kept, int32_t end) const {
  const auto keys = static_cast<uint32_t>(kept.side + end - kept.begin);
  if (keys <= options_.budget) return std::nullopt;
  Choice choice;
  choice.candidates = keys - window_;
  choice.chosen = options_.budget - window_;
  choice.tail = window_;
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
  REPRISE_CUDA(kernels::cuda::pool_votes(args, stream), "pooling votes");
  return {};
}

}  // namespace reprise
