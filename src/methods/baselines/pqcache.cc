#include "methods/baselines/pqcache.h"

#include <algorithm>

#include "kernels/ops.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

constexpr int32_t kPieceTokens = 4096;  // keys that one task scores

}  // namespace

PqCachePolicy::PqCachePolicy(const PqCacheOptions& options, const ModelConfig& config)
    : config_(&config),
      budget_(static_cast<int32_t>(options.budget)),
      sink_(static_cast<int32_t>(std::min(options.sink, options.budget - 1))),
      local_(std::clamp(static_cast<int32_t>(options.local * static_cast<float>(options.budget)), 1,
                        budget_ - sink_)),
      codes_({options.parts, options.bits, options.iterations, options.seed}, config),
      ranking_(config.n_head, config.n_kv_head),
      q_(size_t{config.n_head} * config.head_dim) {}

void PqCachePolicy::select(const QueryRows& rows, Selection& selection) {
  const int32_t end = rows.end(), recent = end - local_;
  const bool prefill = rows.phase == kernels::Phase::kPrefill;
  const bool prompt_read = prefill && end == rows.prompt_end;
  if (end <= budget_ || (prefill && !prompt_read)) return;
  // Every prompt gets codebooks of its own; a sequence that goes on without one, too.
  if (prompt_read || !codes_.trained(rows.layer)) codes_.train(rows, sink_, end);
  codes_.encode(rows, recent);
  if (prefill) return;
  score_keys(rows, recent);
  const auto candidates = static_cast<size_t>(recent - sink_);
  ranking_.rank(*rows.pool, HeadJoin::kSoftmax, candidates,
                static_cast<size_t>(budget_ - sink_ - local_));
  selection.all = false;
  selection.index_bytes_read = candidates * codes_.code_bytes() + codes_.codebook_bytes();
  SelectionPart& part = selection.parts.emplace_back();
  part.split = HeadSplit::kPerKvHead;
  for (size_t head = 0; head < config_->n_kv_head; ++head) {
    add_keys(part, sink_, ranking_.picks(head), sink_, {recent, end});
  }
}

void PqCachePolicy::score_keys(const QueryRows& rows, int32_t end) {
  const size_t dim = config_->head_dim, group = config_->n_head / config_->n_kv_head;
  for (size_t i = 0; i < q_.size(); ++i) q_[i] = rows.q_rotated[i] * config_->attention_scale;
  ranking_.resize(static_cast<size_t>(end - sink_));
  const auto pieces = static_cast<size_t>((end - sink_ + kPieceTokens - 1) / kPieceTokens);
  rows.pool->run(config_->n_kv_head * pieces, [&](size_t task, int) {
    const size_t head = task / pieces;
    const int32_t offset = static_cast<int32_t>(task % pieces) * kPieceTokens;
    const int32_t first = sink_ + offset, last = std::min(end, first + kPieceTokens);
    float* logits = ranking_.logits(head * group) + offset;
    codes_.logits(rows.layer, head, &q_[head * group * dim], first, last, logits,
                  ranking_.stride());
    if (config_->attention_soft_cap <= 0.0f) return;
    for (size_t row = 0; row < group; ++row) {
      kernels::soft_cap(logits + row * ranking_.stride(), static_cast<size_t>(last - first),
                        config_->attention_soft_cap);
    }
  });
}

}  // namespace reprise
