#include "methods/cuda/h2o.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {

using kernels::cuda::KeyWeight;

DeviceH2o::DeviceH2o(const H2oPolicy& policy, const ModelConfig& config)
    : DeviceEvicting(config, policy.options().budget - static_cast<uint32_t>(policy.recent()),
                     static_cast<uint32_t>(policy.recent())),
      observe_(static_cast<int32_t>(policy.options().observe)),
      per_row_(policy.options().normalise == "count") {}

Status DeviceH2o::reserve(const DeviceRoom& room) {
  constexpr std::string_view kWhat = "weights of keys";
  REPRISE_CHECK(DeviceEvicting::reserve(room));
  REPRISE_CHECK(summed_.reserve(size_t{config_.n_kv_head} * stride_, kWhat));
  const size_t heads = size_t{room.sequences} * config_.n_head;
  return logits_.reserve(heads * kernels::cuda::h2o_logits(side_tokens_, recent_), kWhat);
}

Status DeviceH2o::adopt(const PagedKv& kv, const kernels::cuda::PageIds&, cudaStream_t) {
  tile_bytes_ = kernels::cuda::tile_bytes(kv.type, kv.head_dim);
  return {};
}

std::optional<DeviceEvicting::Choice> DeviceH2o::choice(const EvictingPolicy&, const Kept& kept,
                                                        int32_t end) const {
  const auto keys = static_cast<uint32_t>(kept.side + end - kept.begin);
  const auto side = static_cast<uint32_t>(kept.side);
  Choice choice;
  choice.candidates = keys - std::min(keys, recent_);
  choice.chosen = std::min(side_tokens_, choice.candidates);
  const auto left = static_cast<int32_t>(std::max(side, choice.candidates) - side);
  choice.next = {static_cast<int32_t>(choice.chosen), kept.begin + left, end};
  return choice;
}

// A row that was computed ahead and given up stays accounted for: its position does not move more.
Status DeviceH2o::plan_row(EvictingPolicy& host, State&, int32_t position, PagePool& pool) {
  if (!own_side(host, pool)) {
    return fail(ErrorCode::kOutOfMemory,
                "no KV memory for the tokens that h2o keeps; raise --kv-memory");
  }
  const int32_t begin = std::max(0, position + 1 - static_cast<int32_t>(recent_));
  keep(host, {std::min(begin, static_cast<int32_t>(side_tokens_)), begin, position + 1});
  return {};
}

size_t DeviceH2o::weights_at(uint32_t layer) const {
  return size_t{layer} * config_.n_kv_head * (side_tokens_ + recent_ + 1);
}

Status DeviceH2o::own_state(State& state, const State* from, cudaStream_t stream) {
  constexpr std::string_view kWhat = "weights of keys";
  REPRISE_CHECK(state.weights.reserve(weights_at(config_.n_layer), kWhat));
  REPRISE_CHECK(state.until.reserve(size_t{config_.n_layer} * config_.n_kv_head, kWhat));
  if (from == nullptr) return {};
  REPRISE_CUDA(
      cudaMemcpyAsync(state.weights.data(), from->weights.data(),
                      state.weights.size() * sizeof(KeyWeight), cudaMemcpyDeviceToDevice, stream),
      kWhat);
  REPRISE_CUDA(
      cudaMemcpyAsync(state.until.data(), from->until.data(), state.until.size() * sizeof(int32_t),
                      cudaMemcpyDeviceToDevice, stream),
      kWhat);
  return {};
}

Status DeviceH2o::score(const Ranking& ranking, cudaStream_t stream) {
  const KeyWeight* weights = ranking.state.weights.data() + weights_at(ranking.prompt.layer);
  kernels::cuda::AddVotesArgs args;
  args.votes = votes_.data();
  args.n_head = config_.n_head;
  args.n_kv_head = config_.n_kv_head;
  args.stride = stride_;
  args.keys = ranking.keys;
  args.rows = static_cast<uint32_t>(ranking.state.capture->end - ranking.state.capture->first);
  args.first = ranking.state.capture->first;
  args.weights_before = weights;
  args.side_tokens = side_tokens_;
  args.ring = recent_ + 1;
  args.known = ranking.choice.known;
  args.per_row = per_row_;
  args.weights = summed_.data();
  args.scores = scores_.data();
  REPRISE_CUDA(kernels::cuda::add_votes(args, stream), "adding votes");
  return {};
}

void DeviceH2o::keep_weights(const Ranking& ranking, kernels::cuda::CompactKeysArgs& args) const {
  args.weights = summed_.data();
  args.stride = stride_;
  args.side_tokens = side_tokens_;
  args.ring = recent_ + 1;
  args.ring_begin = ranking.choice.next.begin;
  args.weights_after = ranking.state.weights.data() + weights_at(ranking.prompt.layer);
  args.until = ranking.state.until.data() + size_t{ranking.prompt.layer} * config_.n_kv_head;
}

Status DeviceH2o::select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t stream) {
  kernels::cuda::H2oStepArgs args;
  args.kv = queries.kv;
  args.layer = queries.layer;
  args.count = queries.count;
  args.n_head = queries.n_head;
  args.rows = kept_rows(queries.first);
  args.positions = queries.positions;
  args.pages = queries.pages;
  args.side_pages = side_table(queries.layer, queries.first);
  args.capacity = queries.capacity;
  args.side_capacity = side_pages_;
  args.heavy = side_tokens_;
  args.recent = recent_;
  args.per_row = per_row_;
  args.q = queries.q;
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.logits = logits_.data();
  REPRISE_CUDA(kernels::cuda::h2o_step(args, stream), "weighing keys");
  REPRISE_CHECK(DeviceEvicting::select(queries, read, stream));
  read.known = false;  // the step chose them
  return {};
}

// Keys are weighed before one of them is dropped.
uint64_t DeviceH2o::index_bytes_read(const DeviceRow& row) const {
  constexpr uint32_t kTokens = kernels::cuda::kPageTokens;
  const auto own = static_cast<uint32_t>(row.position), begin = own - std::min(own, recent_);
  const uint32_t side = std::min(side_tokens_, begin);
  const uint32_t pages = (side + kTokens - 1) / kTokens + own / kTokens - begin / kTokens + 1;
  return pages * config_.n_kv_head * tile_bytes_;
}

}  // namespace reprise
