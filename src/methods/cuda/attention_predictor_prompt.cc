// What a prompt's last rows tell the device's attention_predictor, and which sequence they are of.
#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "kernels/cuda/kept_keys.h"
#include "kernels/cuda/page_shares.h"
#include "methods/cuda/attention_predictor.h"
#include "methods/find_policy.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "attention of prompts";
constexpr uint32_t kTokens = kernels::cuda::kPageTokens;

}  // namespace

Result<uint32_t> DeviceAttentionPredictor::slot_of(const Policy* owner, cudaStream_t stream) {
  const auto found = std::find(owners_.begin(), owners_.end(), owner);
  const bool known = found != owners_.end();
  const auto slot =
      static_cast<uint32_t>(known ? found - owners_.begin()
                                  : std::min_element(used_.begin(), used_.end()) - used_.begin());
  owners_[slot] = owner;
  used_[slot] = pass_;
  if (!known) REPRISE_CHECK(clear(slot, stream));
  return slot;
}

// A new owner, which may have lost its slot while it waited, goes on from nothing, not from what
// another one left.
Status DeviceAttentionPredictor::clear(uint32_t slot, cudaStream_t stream) const {
  const auto in_all_layers = [&](const DeviceBuffer<float>& buffer, size_t rows) {
    const size_t own = config_.n_kv_head * rows * capacity_ * sizeof(float);
    auto* first = reinterpret_cast<std::byte*>(buffer.data()) + slot * own;
    return cudaMemset2DAsync(first, sequences_ * own, 0, own, config_.n_layer, stream);
  };
  REPRISE_CUDA(in_all_layers(averages_, 1), kWhat);
  if (!net_) return {};
  REPRISE_CUDA(in_all_layers(forecasts_, 1), kWhat);
  REPRISE_CUDA(in_all_layers(history_rows_, net_->rows), kWhat);
  REPRISE_CUDA(in_all_layers(parts_, net_->rows), kWhat);
  return {};
}

uint64_t DeviceAttentionPredictor::head_bytes() const {
  const uint64_t rows = net_ ? 2 + 2 * uint64_t{net_->rows} : 1;
  return rows * config_.n_layer * capacity_ * sizeof(float);
}

DeviceAttentionPredictor::History DeviceAttentionPredictor::history_of(const SequenceStep& step,
                                                                       int32_t position) const {
  const int32_t end = position + static_cast<int32_t>(step.rows);
  const int32_t begin = std::max(0, step.prompt_end - static_cast<int32_t>(options_.history));
  const int32_t first = std::max(position, begin);
  if (first >= end) return {};
  return {0, static_cast<uint32_t>(first - position), static_cast<uint32_t>(end - first),
          position <= begin};
}

Status DeviceAttentionPredictor::plan(const DevicePlan& plan, cudaStream_t stream) {
  ++pass_;
  slots_.assign(sequences_, 0);
  due_.assign(sequences_, 0);
  histories_.assign(plan.steps.size(), {});
  for (const DeviceGroup& group : plan.groups) {
    if (group.policy != this) continue;
    for (uint32_t i = group.first; i < group.first + group.count; ++i) {
      REPRISE_TRY(const uint32_t slot, slot_of(plan.acting[i], stream));
      find_policy<AttentionPredictorPolicy>(*plan.acting[i])->set_device_bytes(head_bytes());
      if (i < plan.decode_rows) {
        slots_[i] = slot;
        due_[i] = captured_turn_at(plan.rows[plan.steps[i].first_row].position);
        continue;
      }
      const SequenceStep& step = plan.steps[i];
      histories_[i] = history_of(step, plan.rows[step.first_row].position);
      histories_[i].slot = slot;
    }
  }
  if (plan.decode_rows == 0 || slots_ == sent_) return {};
  sent_ = slots_;
  return sent_slots_.send(sent_, plan.turn, stream);
}

Status DeviceAttentionPredictor::after_prefill(const DevicePrompt& prompt, cudaStream_t stream) {
  const History& own = histories_[prompt.step];
  tile_bytes_ = tile_bytes(prompt.kv.type, prompt.kv.head_dim);
  if (own.rows == 0) return {};
  return scores_rows() ? score_rows(prompt, own, stream) : count_votes(prompt, own, stream);
}

Status DeviceAttentionPredictor::score_rows(const DevicePrompt& prompt, const History& own,
                                            cudaStream_t stream) {
  WholeSharesArgs whole = whole_args();
  whole.kv = prompt.kv;
  whole.turns.period = 1;
  whole.pages = prompt.pages;
  whole.one_table = true;
  whole.shares = scores_of(config_.n_layer, 0);
  whole.logs = logs_.data();
  for (uint32_t done = 0; done < own.rows; done += whole.rows) {
    const uint32_t row = own.first_row + done;
    whole.rows = std::min(kScoredRows, own.rows - done);
    whole.positions = prompt.positions + row;
    whole.q = prompt.q + size_t{row} * config_.n_head * config_.head_dim;
    REPRISE_CUDA(whole_shares(whole, nullptr, stream), kWhat);
    REPRISE_CUDA(
        average_rows({whole.shares, whole.positions, whole.rows, config_.n_kv_head, capacity_,
                      own.first && done == 0, options_.factor, averages_of(prompt.layer, own.slot),
                      history_of(prompt.layer, own.slot)},
                     stream),
        kWhat);
  }
  if (!net_) return {};
  ForecastArgs forecast = forecast_args(prompt.layer, own.slot);
  forecast.anew = true;
  forecast.positions = prompt.positions + own.first_row + own.rows - 1;
  forecast.rows = 1;
  REPRISE_CUDA(forecast_shares(forecast, stream), kWhat);
  return {};
}

ShareHistory DeviceAttentionPredictor::history_of(uint32_t layer, uint32_t slot) const {
  if (!net_) return {};
  const auto rows = static_cast<std::ptrdiff_t>(net_->rows);
  const std::ptrdiff_t before = averages_of(layer, slot) - averages_.data();
  return {history_rows_.data() + before * rows, net_->rows, !net_->published};
}

ForecastArgs DeviceAttentionPredictor::forecast_args(uint32_t layer, uint32_t slot) const {
  const BlockBudget& budget = budgets_[layer];
  ForecastArgs args;
  args.net = device_net_.data();
  args.history = history_of(layer, slot);
  args.parts = parts_.data() + (args.history.rows - history_rows_.data());
  args.n_kv_head = config_.n_kv_head;
  args.capacity = capacity_;
  args.sink_pages = static_cast<uint32_t>(budget.sink) / kTokens;
  args.recent_tokens = static_cast<uint32_t>(budget.window);
  args.averages = net_->published ? nullptr : averages_of(layer, slot);
  args.forecasts = scores_of(layer, slot);
  return args;
}

Status DeviceAttentionPredictor::count_votes(const DevicePrompt& prompt, const History& own,
                                             cudaStream_t stream) {
  const size_t head = size_t{own.first_row} * config_.n_head;
  REPRISE_CUDA(weigh_rows({prompt.lse + head, own.rows, config_.n_head, own.first, options_.factor,
                           weighed_.data()},
                          stream),
               kWhat);
  KeyVotesArgs votes;
  votes.kv = prompt.kv;
  votes.keys.pages = prompt.pages;
  votes.keys.end = prompt.rows.position + static_cast<int32_t>(prompt.rows.count);
  votes.n_head = config_.n_head;
  votes.q = prompt.q + head * config_.head_dim;
  votes.lse = weighed_.data();
  votes.rows = own.rows;
  votes.first = prompt.rows.position + static_cast<int32_t>(own.first_row);
  votes.scale = kQueryUnit;
  votes.soft_cap = config_.attention_soft_cap;
  votes.votes = votes_.data();
  votes.stride = kTokens * capacity_;
  REPRISE_CUDA(key_votes(votes, stream), kWhat);
  PoolSharesArgs pool;
  pool.votes = votes_.data();
  pool.n_head = config_.n_head;
  pool.n_kv_head = config_.n_kv_head;
  pool.keys = static_cast<uint32_t>(votes.keys.end);
  pool.stride = votes.stride;
  pool.past = own.first ? 0.0f : std::pow(options_.factor, static_cast<float>(own.rows));
  pool.averages = averages_of(prompt.layer, own.slot);
  pool.capacity = capacity_;
  REPRISE_CUDA(pool_shares(pool, stream), kWhat);
  return {};
}

}  // namespace reprise
