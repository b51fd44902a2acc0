// The part of the executor that says what pages get of a row's attention (Selection::shares).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "attention/executor.h"
#include "kernels/softmax.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kTimed = 4;  // one job of so many is timed: asking for the time takes as long

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

/// Makes room for the shares of a step, whose jobs start at first_job.
Status CpuExecutor::list_shares(size_t step, size_t first_job) {
  const auto start = Clock::now();
  PageShares& shares = *selections_[step].shares;
  const auto jobs = plan_.jobs().subspan(first_job);
  if (steps_[step].phase == kernels::Phase::kPrefill || steps_[step].rows != 1) {
    return fail(ErrorCode::kUnsupported,
                "the policy asks what pages get of the attention of {} rows; only single decode "
                "rows have that",
                steps_[step].rows);
  }
  shares.heads = jobs.empty() ? config_.n_head : jobs.front().heads;
  shares.offsets.assign(config_.n_head / shares.heads + 1, 0);
  for (const AttentionJob& job : jobs) {
    shares.offsets[job.head / shares.heads + 1] += plan_.reads(job)[0].blocks;
  }
  std::partial_sum(shares.offsets.begin(), shares.offsets.end(), shares.offsets.begin());
  shares.pages.resize(shares.offsets.back());
  shares.values.resize(shares.pages.size());
  shared_pages_.resize(std::max(shared_pages_.size(), plan_.jobs().size()));
  share_factors_.resize(plan_.partials());
  shares_ms_.assign(plan_.jobs().size(), 0.0);
  std::vector<uint32_t> counts(shares.lists());
  for (const AttentionJob& job : jobs) {
    const size_t list = job.head / shares.heads;
    const auto blocks = plan_.blocks(plan_.reads(job)[0]);
    const uint32_t first = shares.offsets[list] + counts[list];
    counts[list] += static_cast<uint32_t>(blocks.size());
    int32_t* pages = &shares.pages[first];
    for (const KeyBlock& block : blocks) *pages++ = static_cast<int32_t>(block.index);
    SharedPages& own = shared_pages_[static_cast<size_t>(&job - plan_.jobs().data())];
    own.first = first;
    own.of_heads.resize(blocks.size() * job.heads);
  }
  shares.ms = ms_since(start);
  return {};
}

/// Of the job's part of the keys.
void CpuExecutor::pool_shares(const AttentionJob& job, const Scratch& scratch, const float* lse) {
  const PageShares* shares = selections_[job.step].shares;
  if (shares == nullptr) return;
  const auto index = static_cast<size_t>(&job - plan_.jobs().data());
  const bool timed = index % kTimed == 0;
  const auto start = timed ? Clock::now() : Clock::time_point();
  const size_t pages = plan_.reads(job)[0].blocks;
  float* values = shared_pages_[index].of_heads.data();
  for (size_t head = 0; head < job.heads; ++head) {
    kernels::page_shares(&scratch.logits[head * pages * kPageTokens], pages, shares->largest,
                         lse[head], values + head * pages);
  }
  if (timed) shares_ms_[index] = ms_since(start);
}

/// What shares of each piece are of all.
void CpuExecutor::weigh_pieces(const PieceMerge& merge) {
  for (uint32_t head = 0; head < merge.heads; ++head) {
    const size_t first = merge.partial + head, end = first + merge.pieces * merge.heads;
    float top = -std::numeric_limits<float>::infinity(), total = 0.0f;
    for (size_t i = first; i < end; i += merge.heads) top = std::max(top, partial_lse_[i]);
    const float base = std::isinf(top) ? 0.0f : top;  // infinite: nothing was read
    for (size_t i = first; i < end; i += merge.heads) {
      total += share_factors_[i] = std::exp(partial_lse_[i] - base);
    }
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    for (size_t i = first; i < end; i += merge.heads) share_factors_[i] *= inverse;
  }
}

/// Shares of a job's heads become those of its pages.
void CpuExecutor::join_heads(size_t index) const {
  const AttentionJob& job = plan_.jobs()[index];
  const SharedPages& own = shared_pages_[index];
  const size_t pages = plan_.reads(job)[0].blocks;
  float* values = &selections_[job.step].shares->values[own.first];
  std::fill_n(values, pages, 0.0f);
  for (size_t head = 0; head < job.heads; ++head) {
    const bool alone = job.partial == AttentionPlan::kDirect;
    const float factor = alone ? 1.0f : share_factors_[job.partial + head];
    const float* of_head = &own.of_heads[head * pages];
    for (size_t i = 0; i < pages; ++i) values[i] += factor * of_head[i];
  }
}

void CpuExecutor::finish_shares() {
  const auto jobs = plan_.jobs();
  const auto merges = plan_.merges();
  size_t job = 0, merge = 0;  // those of a step follow each other
  for (uint32_t step = 0; step < steps_.size(); ++step) {
    PageShares* shares = selections_[step].shares;
    const auto start = shares != nullptr ? Clock::now() : Clock::time_point();
    for (; merge < merges.size() && merges[merge].step == step; ++merge) {
      if (shares != nullptr) weigh_pieces(merges[merge]);
    }
    for (; job < jobs.size() && jobs[job].step == step; ++job) {
      if (shares == nullptr) continue;
      join_heads(job);
      if (job % kTimed != 0) continue;
      const size_t timed = std::min(kTimed, jobs.size() - job);
      shares->ms += static_cast<double>(timed) * shares_ms_[job] / pool_.size();
    }
    if (shares != nullptr) shares->ms += ms_since(start);
  }
}

}  // namespace reprise
