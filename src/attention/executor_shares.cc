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
  shares.values.resize(shares.pages.size() * shares.heads);
  shared_pages_.resize(std::max(shared_pages_.size(), plan_.partials()));
  shares_ms_.assign(plan_.jobs().size(), 0.0);
  std::vector<uint32_t> counts(shares.lists());
  for (const AttentionJob& job : jobs) {
    const size_t list = job.head / shares.heads;
    const auto blocks = plan_.blocks(plan_.reads(job)[0]);
    const SharedPages own = {counts[list], static_cast<uint32_t>(blocks.size())};
    if (job.partial != AttentionPlan::kDirect) shared_pages_[job.partial] = own;
    counts[list] += own.count;
    int32_t* pages = &shares.pages[shares.offsets[list] + own.first];
    for (const KeyBlock& block : blocks) *pages++ = static_cast<int32_t>(block.index);
  }
  shares.ms = ms_since(start);
  return {};
}

/// Of the job's part of the keys.
void CpuExecutor::pool_shares(const AttentionJob& job, const Scratch& scratch, const float* lse) {
  PageShares* shares = selections_[job.step].shares;
  if (shares == nullptr) return;
  const auto index = static_cast<size_t>(&job - plan_.jobs().data());
  const bool timed = index % kTimed == 0;
  const auto start = timed ? Clock::now() : Clock::time_point();
  const size_t list = job.head / shares->heads, pages = plan_.reads(job)[0].blocks;
  const size_t first = job.partial == AttentionPlan::kDirect ? 0 : shared_pages_[job.partial].first;
  for (size_t head = 0; head < job.heads; ++head) {
    kernels::page_shares(&scratch.logits[head * pages * kPageTokens], pages, shares->largest,
                         lse[head], shares->of(list, head).subspan(first, pages).data());
  }
  if (timed) shares_ms_[index] = ms_since(start);
}

/// Shares of each piece become shares of all.
void CpuExecutor::join_shares(const PieceMerge& merge) const {
  PageShares& shares = *selections_[merge.step].shares;
  for (uint32_t head = 0; head < merge.heads; ++head) {
    const auto own = shares.of(merge.head / shares.heads, head);
    const auto lse = [&](uint32_t piece) {
      return partial_lse_[merge.partial + piece * merge.heads + head];
    };
    float top = -std::numeric_limits<float>::infinity(), total = 0.0f;
    for (uint32_t piece = 0; piece < merge.pieces; ++piece) top = std::max(top, lse(piece));
    if (std::isinf(top)) continue;  // nothing was read
    for (uint32_t piece = 0; piece < merge.pieces; ++piece) total += std::exp(lse(piece) - top);
    for (uint32_t piece = 0; piece < merge.pieces; ++piece) {
      const SharedPages& pages = shared_pages_[merge.partial + piece * merge.heads];
      const float share = std::exp(lse(piece) - top) / total;
      for (float& value : own.subspan(pages.first, pages.count)) value *= share;
    }
  }
}

void CpuExecutor::finish_shares() const {
  if (std::ranges::all_of(selections_, [](const Selection& s) { return s.shares == nullptr; })) {
    return;
  }
  const auto jobs = plan_.jobs();
  for (size_t i = 0; i < jobs.size(); i += kTimed) {
    PageShares* shares = selections_[jobs[i].step].shares;
    const size_t timed = std::min(kTimed, jobs.size() - i);
    if (shares != nullptr) shares->ms += static_cast<double>(timed) * shares_ms_[i] / pool_.size();
  }
  for (const PieceMerge& merge : plan_.merges()) {
    if (selections_[merge.step].shares == nullptr) continue;
    const auto start = Clock::now();
    join_shares(merge);
    selections_[merge.step].shares->ms += ms_since(start);
  }
}

}  // namespace reprise
