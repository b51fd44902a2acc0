#include "methods/reattention/least_scores.h"

#include <algorithm>
#include <cmath>

#include "kernels/key_logits.h"
#include "kernels/ops.h"
#include "methods/key_list.h"
#include "model/rope.h"

namespace reprise {
namespace {

constexpr auto kBefore = static_cast<int32_t>(kPageTokens) - 1;

/// Pages of both runs, with the angles of their slots.
std::vector<kernels::PageSpan> near_pages(const QueryRows& rows, size_t kv_head, NearKeys near,
                                          const NearAngles& angles) {
  std::vector<kernels::PageSpan> pages, recent;
  list_pages(rows, kv_head, 0, near.first, pages);
  list_pages(rows, kv_head, near.last, rows.end(), recent);
  const size_t sinks = pages.size();
  pages.insert(pages.end(), recent.begin(), recent.end());
  for (size_t i = 0; angles.pairs > 0 && i < pages.size(); ++i) {
    const int32_t shift = i < sinks ? 0 : near.first - near.last;
    const int32_t row = pages[i].index + shift + kBefore;
    pages[i].cos_sin = &angles.rows[static_cast<size_t>(row) * angles.pairs * 2];
  }
  return pages;
}

double log_sum_exp(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum);
}

}  // namespace

NearAngles::NearAngles(const RopeConfig& rope, uint32_t context, int32_t count) {
  if (rope.dims == 0) return;
  const RopeTable table(rope, context);
  pairs = table.pairs();
  const int32_t positions = count + 2 * kBefore;
  rows.resize(static_cast<size_t>(positions) * pairs * 2);
  for (int32_t row = 0; row < positions; ++row) {
    table.cos_sin(row - kBefore, &rows[static_cast<size_t>(row) * pairs * 2]);
  }
}

std::vector<float> least_scores(const QueryRows& rows, NearKeys near, float share,
                                const NearAngles& angles, const ModelConfig& config) {
  const size_t group = config.n_head / config.n_kv_head, dim = config.head_dim;
  const int32_t last = near.first + rows.end() - near.last - 1 + kBefore;
  std::vector<float> least(config.n_head);
  rows.pool->run(config.n_kv_head, [&](size_t kv_head, int) {
    const auto pages = near_pages(rows, kv_head, near, angles);
    const float* from = rows.q + kv_head * group * dim;
    std::vector<float> q(from, from + group * dim), logits(group * pages.size() * kPageTokens);
    if (angles.pairs > 0) {
      kernels::rope(q.data(), &angles.rows[static_cast<size_t>(last) * angles.pairs * 2], group,
                    dim, angles.pairs);
    }
    kernels::KeyLogitsArgs args;
    args.layout = &rows.kv->pool().layout();
    args.rows = group;
    args.q = q.data();
    args.q_stride = dim;
    args.pages = pages;
    args.scale = config.attention_scale;
    args.rope_pairs = angles.pairs;
    args.out = logits.data();
    args.out_stride = pages.size() * kPageTokens;
    kernels::key_logits(args);
    for (size_t i = 0; i < group; ++i) {
      const std::span<const float> own(&logits[i * args.out_stride], args.out_stride);
      const double bound = log_sum_exp(own) + std::log(static_cast<double>(share));
      least[kv_head * group + i] = static_cast<float>(bound / config.attention_scale);
    }
  });
  return least;
}

}  // namespace reprise
