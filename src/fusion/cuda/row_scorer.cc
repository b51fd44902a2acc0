#include "fusion/cuda/row_scorer.h"

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "fusion/cuda/send.h"
#include "fusion/row_choice.h"
#include "kernels/cuda/row_scores.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr std::string_view kWhat = "choosing rows";

}  // namespace

RowScorer::RowScorer(const DeviceParts& parts, ScoreBuffers& buffers, const RowCheck& check,
                     const LayerRows& rows, uint32_t last)
    : parts_(parts), b_(buffers), check_(check), rows_(rows), last_(last) {
  const auto positions = rows_.positions();
  const auto asks = std::ranges::lower_bound(positions, check_.question) - positions.begin();
  const size_t count = positions.size();
  first_asking_ = static_cast<uint32_t>(
      std::max(static_cast<size_t>(asks), count - std::min<size_t>(count, check_.window)));
}

Status RowScorer::begin() {
  if (check_.score == RowScore::kValues) return b_.scores.reserve(rows_.positions().size(), kWhat);
  REPRISE_CHECK(b_.scores.reserve(keys(), kWhat));
  REPRISE_CUDA(cudaMemsetAsync(b_.scores.data(), 0, keys() * sizeof(float), parts_.stream), kWhat);
  const auto asking = static_cast<uint32_t>(rows_.positions().size()) - first_asking_;
  if (check_.score == RowScore::kHeads) {
    const ModelConfig& config = parts_.computes.config();
    const size_t room = head_scores_workspace(asking, config.n_head, config.n_kv_head, keys());
    return b_.workspace.reserve(room, kWhat);
  }
  std::vector<uint8_t> candidates(keys());
  for (const int32_t at : check_.candidates) candidates[static_cast<size_t>(at)] = 1;
  REPRISE_CHECK(send(candidates, b_.candidates, parts_.stream));
  return b_.workspace.reserve(question_scores_workspace(asking, keys()), kWhat);
}

Status RowScorer::attend(const LayerHeads& heads, cudaStream_t stream) {
  if (check_.score == RowScore::kValues) REPRISE_CHECK(score_values(heads, stream));
  REPRISE_CHECK(heads.layer < last_ ? parts_.executor.attend(heads, stream)
                                    : parts_.executor.store(heads, stream));
  return check_.score == RowScore::kValues ? Status() : score_question(heads.layer, stream);
}

Status RowScorer::score_values(const LayerHeads& heads, cudaStream_t stream) const {
  ValueDeviationArgs args;
  args.kv = parts_.kv;
  args.pages = rows_.table(heads.layer);
  args.v = heads.v;
  args.positions = rows_.device_positions() + block_.first;
  args.rows = block_.count;
  args.out = b_.scores.data() + block_.first;
  REPRISE_CUDA(value_deviation(args, stream), kWhat);
  if (parts_.communicator == nullptr) return {};
  return parts_.communicator->sum(args.out, block_.count, stream);
}

Status RowScorer::score_question(uint32_t layer, cudaStream_t stream) const {
  const Asking asks = {std::max(first_asking_, block_.first), block_.first + block_.count};
  if (asks.first >= asks.end) return {};
  Held held = {parts_.kv, rows_.table(layer),
               static_cast<uint32_t>(rows_.positions()[asks.end - 1]) + 1};
  if (const PositionFreeKeys* free = rows_.unrotated(); free != nullptr) {
    if (layer == last_) {  // in others attend() did so
      PositionFreeKeys::Source source = {held.pages, held.keys};
      if (asks.first > first_asking_) {
        source.first_page =
            static_cast<uint32_t>(rows_.positions()[asks.first - 1]) / kernels::kPageTokens;
      }
      REPRISE_CHECK(parts_.executor.rotate(*free, source, layer, stream));
    }
    held = {free->copies(), free->pages(), held.keys};
  }
  return check_.score == RowScore::kJoint ? score_joint(held, asks, stream)
                                          : score_heads(held, asks, layer, stream);
}

template <class Args>
void RowScorer::name_rows(const Held& held, const Asking& asks, Args& args) const {
  const ModelConfig& config = parts_.computes.config();
  args.kv = held.kv;
  args.pages = held.pages;
  args.q = parts_.executor.queries() +
           size_t{asks.first - block_.first} * config.n_head * config.head_dim;
  args.positions = rows_.device_positions() + asks.first;
  args.n_head = config.n_head;
  args.keys = held.keys;
  args.workspace = b_.workspace.data();
  args.scores = b_.scores.data();
}

template <class Args, class Score>
Status RowScorer::in_parts(Args& args, const Asking& asks, Score&& score) const {
  const ModelConfig& config = parts_.computes.config();
  for (uint32_t left = asks.end - asks.first; left > 0; left -= args.rows) {
    args.rows = std::min(left, kScoredRows);
    REPRISE_CHECK(score());
    args.q += size_t{args.rows} * config.n_head * config.head_dim;
    args.positions += args.rows;
  }
  return {};
}

Status RowScorer::score_joint(const Held& held, const Asking& asks, cudaStream_t stream) const {
  QuestionScoresArgs args;
  name_rows(held, asks, args);
  args.candidates = b_.candidates.data();
  args.first_own = rows_.positions()[first_asking_];
  const ModelConfig& config = parts_.model.config();
  const auto width = static_cast<float>(config.n_head * config.head_dim);  // of all devices
  args.scale = 1.0f / std::sqrt(width) * kQueryUnit / config.attention_scale;
  return in_parts(args, asks, [&]() -> Status {
    REPRISE_CUDA(question_logits(args, stream), kWhat);
    if (parts_.communicator != nullptr) {
      const size_t logits = size_t{args.rows} * args.keys;
      REPRISE_CHECK(parts_.communicator->sum(args.workspace, logits, stream));
    }
    REPRISE_CUDA(question_weights(args, stream), kWhat);
    return {};
  });
}

Status RowScorer::score_heads(const Held& held, const Asking& asks, uint32_t layer,
                              cudaStream_t stream) const {
  HeadScoresArgs args;
  name_rows(held, asks, args);
  args.scale = kQueryUnit;
  args.soft_cap = parts_.computes.config().attention_soft_cap;
  REPRISE_CUDA(value_norms(args, stream), kWhat);
  REPRISE_CHECK(in_parts(args, asks, [&]() -> Status {
    REPRISE_CUDA(head_scores(args, stream), kWhat);
    return {};
  }));
  const bool all = layer == last_ && asks.end == rows_.positions().size();
  if (!all || parts_.communicator == nullptr) return {};
  return parts_.communicator->sum(b_.scores.data(), keys(), stream);
}

Result<std::vector<float>> RowScorer::scores() const {
  const bool by_rows = check_.score == RowScore::kValues;
  std::vector<float> all(by_rows ? rows_.positions().size() : keys());
  REPRISE_CUDA(cudaMemcpyAsync(all.data(), b_.scores.data(), all.size() * sizeof(float),
                               cudaMemcpyDeviceToHost, parts_.stream),
               kWhat);
  REPRISE_CUDA(cudaStreamSynchronize(parts_.stream), kWhat);
  if (by_rows) return scores_of(check_.candidates, rows_.positions(), all);
  std::vector<float> scores;
  scores.reserve(check_.candidates.size());
  for (const int32_t at : check_.candidates) scores.push_back(all[static_cast<size_t>(at)]);
  return scores;
}

}  // namespace reprise
