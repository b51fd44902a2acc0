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
                     const LayerRows& rows, const uint32_t* table)
    : parts_(parts), b_(buffers), check_(check), rows_(rows), table_(table) {
  const auto positions = rows_.positions();
  const auto asks = std::ranges::lower_bound(positions, check_.question) - positions.begin();
  const size_t count = positions.size();
  first_asking_ = static_cast<uint32_t>(
      std::max(static_cast<size_t>(asks), count - std::min<size_t>(count, check_.window)));
}

Status RowScorer::begin() {
  if (check_.by_values) return b_.scores.reserve(rows_.positions().size(), kWhat);
  std::vector<uint8_t> candidates(keys());
  for (const int32_t at : check_.candidates) candidates[static_cast<size_t>(at)] = 1;
  REPRISE_CHECK(send(candidates, b_.candidates, parts_.stream));
  REPRISE_CHECK(b_.scores.reserve(keys(), kWhat));
  const auto asking = static_cast<uint32_t>(rows_.positions().size()) - first_asking_;
  REPRISE_CHECK(b_.workspace.reserve(question_scores_workspace(asking, keys()), kWhat));
  REPRISE_CUDA(cudaMemsetAsync(b_.scores.data(), 0, keys() * sizeof(float), parts_.stream), kWhat);
  return {};
}

Status RowScorer::attend(const LayerHeads& heads, cudaStream_t stream) {
  if (check_.by_values) REPRISE_CHECK(score_values(heads, stream));
  REPRISE_CHECK(parts_.executor.store(heads, stream));
  return check_.by_values ? Status() : score_question(heads.layer, stream);
}

Status RowScorer::score_values(const LayerHeads& heads, cudaStream_t stream) const {
  ValueDeviationArgs args;
  args.kv = parts_.kv;
  args.pages = table_;
  args.v = heads.v;
  args.positions = rows_.device_positions() + block_.first;
  args.rows = block_.count;
  args.out = b_.scores.data() + block_.first;
  REPRISE_CUDA(value_deviation(args, stream), kWhat);
  if (parts_.communicator == nullptr) return {};
  return parts_.communicator->sum(args.out, block_.count, stream);
}

Status RowScorer::score_question(uint32_t layer, cudaStream_t stream) const {
  const uint32_t first = std::max(first_asking_, block_.first), end = block_.first + block_.count;
  if (first >= end) return {};
  const ModelConfig& config = parts_.computes.config();
  const uint32_t width = config.n_head * config.head_dim;
  QuestionScoresArgs args;
  args.kv = parts_.kv;
  args.pages = table_;
  if (const PositionFreeKeys* free = rows_.unrotated(); free != nullptr) {
    REPRISE_CHECK(parts_.executor.rotate(*free, {table_, keys()}, layer, stream));
    args.kv = free->copies();
    args.pages = free->pages();
  }
  args.q = parts_.executor.queries() + size_t{first - block_.first} * width;
  args.positions = rows_.device_positions() + first;
  args.candidates = b_.candidates.data();
  args.n_head = config.n_head;
  args.keys = keys();
  args.first_own = rows_.positions()[first_asking_];
  const uint32_t all_heads = parts_.model.config().n_head * config.head_dim;
  args.scale =
      1.0f / std::sqrt(static_cast<float>(all_heads)) * kQueryUnit / config.attention_scale;
  args.workspace = b_.workspace.data();
  args.scores = b_.scores.data();
  for (uint32_t left = end - first; left > 0; left -= args.rows) {
    args.rows = std::min(left, kScoredRows);
    REPRISE_CUDA(question_logits(args, stream), kWhat);
    if (parts_.communicator != nullptr) {
      const size_t logits = size_t{args.rows} * args.keys;
      REPRISE_CHECK(parts_.communicator->sum(args.workspace, logits, stream));
    }
    REPRISE_CUDA(question_weights(args, stream), kWhat);
    args.q += size_t{args.rows} * width;
    args.positions += args.rows;
  }
  return {};
}

Result<std::vector<float>> RowScorer::scores() const {
  std::vector<float> all(check_.by_values ? rows_.positions().size() : keys());
  REPRISE_CUDA(cudaMemcpyAsync(all.data(), b_.scores.data(), all.size() * sizeof(float),
                               cudaMemcpyDeviceToHost, parts_.stream),
               kWhat);
  REPRISE_CUDA(cudaStreamSynchronize(parts_.stream), kWhat);
  if (check_.by_values) return scores_of(check_.candidates, rows_.positions(), all);
  std::vector<float> scores;
  for (const int32_t at : check_.candidates) scores.push_back(all[static_cast<size_t>(at)]);
  return scores;
}

}  // namespace reprise
