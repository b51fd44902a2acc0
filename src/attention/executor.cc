#include "attention/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "base/try.h"
#include "kernels/ops.h"

namespace reprise {
namespace {

constexpr size_t kStoreRows = 16;  // rows of one storing task: those of a page stay on one core

double elapsed_ms(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since)
      .count();
}

}  // namespace

CpuExecutor::CpuExecutor(const ModelConfig& config, std::span<const RopeTable* const> ropes,
                         ThreadPool& pool)
    : config_(config),
      pool_(pool),
      rotation_(ropes),
      plan_(config),
      scratch_(static_cast<size_t>(pool.size())) {}

void CpuExecutor::begin(std::span<const Row> rows, std::span<const SequenceStep> steps) {
  rows_ = rows;
  steps_ = steps;
  selections_.resize(steps.size());
  costs_.assign(steps.size(), {});
  rotation_.begin(rows);
}

Status CpuExecutor::attend(uint32_t layer, float* q, float* k, float* v, float* out) {
  store(layer, k, v);
  REPRISE_CHECK(select(layer, q));
  const size_t head_dim = config_.head_dim;
  partial_out_.resize(std::max(partial_out_.size(), plan_.partials() * head_dim));
  partial_lse_.resize(std::max(partial_lse_.size(), plan_.partials()));
  const Call call = {layer, q, out};
  const auto jobs = plan_.jobs();
  pool_.run(jobs.size(), [&](size_t job, int thread) { run(call, jobs[job], scratch_[thread]); });
  for (const PieceMerge& merge : plan_.merges()) merge_pieces(call, merge);
  return {};
}

void CpuExecutor::store(uint32_t layer, float* k, const float* v) {
  const size_t width = size_t{config_.n_kv_head} * config_.head_dim;
  const size_t pairs = rotation_.rope(layer).pairs();
  for (const SequenceStep& step : steps_) {
    const kernels::KvLayout& layout = step.kv->pool().layout();
    pool_.run((step.rows + kStoreRows - 1) / kStoreRows, [&](size_t task, int) {
      const size_t end = std::min<size_t>(step.rows, (task + 1) * kStoreRows);
      for (size_t i = task * kStoreRows; i < end; ++i) {
        const size_t row = step.first_row + i;
        const auto position = static_cast<size_t>(rows_[row].position);
        if (!step.policy->position_free()) {
          kernels::rope(k + row * width, rotation_.row(layer, row), config_.n_kv_head,
                        config_.head_dim, pairs);
        }
        kernels::store_token(layout, step.kv->page(layer, position / kPageTokens),
                             position % kPageTokens, k + row * width, v + row * width);
      }
    });
  }
}

Status CpuExecutor::select(uint32_t layer, const float* q) {
  const size_t q_width = size_t{config_.n_head} * config_.head_dim;
  plan_.clear();
  for (size_t i = 0; i < steps_.size(); ++i) {
    const SequenceStep& step = steps_[i];
    const auto rows = rows_.subspan(step.first_row, step.rows);
    Selection& selection = selections_[i];
    selection.reset();
    if (config_.window[layer] == 0) {
      const auto start = std::chrono::steady_clock::now();
      step.policy->select({layer, step.phase, rows, q + step.first_row * q_width, step.kv},
                          selection);
      costs_[i].select_ms += elapsed_ms(start);
    }
    if (step.policy->position_free()) {
      rotation_.reserve_pages(layer, static_cast<size_t>(rows.back().position) + 1);
    }
    const uint64_t before = plan_.decode_keys();
    REPRISE_CHECK(plan_.add(layer, static_cast<uint32_t>(i), step, rows, selection));
    if (step.phase != kernels::Phase::kDecode) continue;
    const uint64_t read = plan_.decode_keys() - before;
    costs_[i].keys_read += read;
    costs_[i].kv_bytes_read += read * 2 * step.kv->pool().layout().tile_bytes() / kPageTokens;
    for (const Row& row : rows) {
      const auto seen = static_cast<uint64_t>(row.position) + 1;
      const uint64_t window = config_.window[layer];
      costs_[i].keys_visible += (window > 0 ? std::min(seen, window) : seen) * config_.n_kv_head;
    }
  }
  return {};
}

void CpuExecutor::run(const Call& call, const AttentionJob& job, Scratch& scratch) {
  const size_t head_dim = config_.head_dim;
  const size_t results = size_t{job.rows} * job.heads;
  scratch.out.resize(std::max(scratch.out.size(), results * head_dim));
  scratch.lse.resize(std::max(scratch.lse.size(), results));
  const bool direct = job.partial == AttentionPlan::kDirect;
  float* out = direct ? scratch.out.data() : &partial_out_[job.partial * head_dim];
  float* lse = direct ? scratch.lse.data() : &partial_lse_[job.partial];
  if (job.reads == 0) {
    std::fill_n(out, results * head_dim, 0.0f);
    std::fill_n(lse, results, -std::numeric_limits<float>::infinity());
  }
  bool first = true;
  for (const KeyRead& part : plan_.reads(job)) {
    if (first) {
      read(call, job, part, scratch, out, lse);
    } else {
      scratch.more_out.resize(std::max(scratch.more_out.size(), results * head_dim));
      scratch.more_lse.resize(std::max(scratch.more_lse.size(), results));
      read(call, job, part, scratch, scratch.more_out.data(), scratch.more_lse.data());
      for (size_t i = 0; i < results; ++i) {
        kernels::merge_partial(out + i * head_dim, lse + i, &scratch.more_out[i * head_dim],
                               scratch.more_lse[i], head_dim);
      }
    }
    first = false;
  }
  if (direct) finish(call, job, out, lse);
}

void CpuExecutor::read(const Call& call, const AttentionJob& job, const KeyRead& read,
                       Scratch& scratch, float* out, float* lse) {
  gather_queries(call, job, *read.part, scratch);
  gather_pages(call.layer, job, read, scratch);
  const size_t results = size_t{job.rows} * job.heads;
  scratch.row_begin.resize(results);
  scratch.row_end.resize(results);
  const auto layer_window = static_cast<int32_t>(config_.window[call.layer]);
  for (size_t row = 0; row < job.rows; ++row) {
    const int32_t position = rows_[job.row + row].position;
    int32_t begin = 0;
    for (const int32_t window : {layer_window, read.part->window}) {
      if (window > 0) begin = std::max(begin, position - window + 1);
    }
    std::fill_n(&scratch.row_begin[row * job.heads], job.heads, begin);
    std::fill_n(&scratch.row_end[row * job.heads], job.heads, position + 1);
  }
  kernels::AttendArgs args;
  args.layout = &steps_[job.step].kv->pool().layout();
  args.phase = steps_[job.step].phase;
  args.rows = results;
  args.q = scratch.q.data();
  args.q_stride = config_.head_dim;
  args.row_begin = scratch.row_begin.data();
  args.row_end = scratch.row_end.data();
  args.pages = scratch.pages;
  args.scale = config_.attention_scale;
  args.soft_cap = config_.attention_soft_cap;
  args.rope_pairs = rotation_.rope(call.layer).pairs();
  args.out = out;
  args.out_stride = config_.head_dim;
  args.lse = lse;
  scratch.kernel.resize(std::max(scratch.kernel.size(), kernels::attend_scratch_bytes(args)));
  kernels::attend(args, scratch.kernel.data());
}

void CpuExecutor::gather_queries(const Call& call, const AttentionJob& job,
                                 const SelectionPart& part, Scratch& scratch) const {
  const RopeTable& rope = rotation_.rope(call.layer);
  const size_t width = size_t{job.heads} * config_.head_dim;
  scratch.q.resize(std::max(scratch.q.size(), job.rows * width));
  scratch.cos_sin.resize(rope.pairs() * 2);
  bool capped = false;
  for (size_t row = 0; row < job.rows; ++row) {
    const size_t batch_row = job.row + row;
    float* q = &scratch.q[row * width];
    std::memcpy(q, call.q + (batch_row * config_.n_head + job.head) * config_.head_dim,
                width * sizeof(float));
    const float* cos_sin = rotation_.row(call.layer, batch_row);
    if (rows_[batch_row].position > part.max_query_position) {
      if (!capped) rope.cos_sin(part.max_query_position, scratch.cos_sin.data());
      capped = true;
      cos_sin = scratch.cos_sin.data();
    }
    kernels::rope(q, cos_sin, job.heads, config_.head_dim, rope.pairs());
  }
}

void CpuExecutor::gather_pages(uint32_t layer, const AttentionJob& job, const KeyRead& read,
                               Scratch& scratch) const {
  const SequenceStep& step = steps_[job.step];
  const kernels::KvLayout& layout = step.kv->pool().layout();
  const size_t kv_head = job.head / (config_.n_head / config_.n_kv_head);
  const size_t k_offset = layout.k_offset(kv_head), v_offset = layout.v_offset(kv_head);
  const bool position_free = step.policy->position_free();
  scratch.pages.clear();
  for (const KeyBlock& block : plan_.blocks(read)) {
    const std::byte* page = step.kv->page(layer, block.index);
    scratch.pages.push_back(
        {page + k_offset, page + v_offset, static_cast<int32_t>(block.index * kPageTokens),
         block.begin, block.end, position_free ? rotation_.page(layer, block.index) : nullptr});
  }
}

void CpuExecutor::finish(const Call& call, const AttentionJob& job, float* out, float* lse) const {
  const Partial* reused = selections_[job.step].reused;
  for (size_t row = 0; row < job.rows; ++row) {
    const size_t step_row = job.row + row - steps_[job.step].first_row;
    for (size_t head = 0; head < job.heads; ++head) {
      float* result = out + (row * job.heads + head) * config_.head_dim;
      const size_t known = step_row * config_.n_head + job.head + head;
      if (reused != nullptr) {
        kernels::merge_partial(result, lse + row * job.heads + head,
                               &reused->out[known * config_.head_dim], reused->lse[known],
                               config_.head_dim);
      }
    }
    std::memcpy(call.out + ((job.row + row) * config_.n_head + job.head) * config_.head_dim,
                out + row * job.heads * config_.head_dim,
                job.heads * config_.head_dim * sizeof(float));
  }
}

void CpuExecutor::merge_pieces(const Call& call, const PieceMerge& merge) {
  const size_t head_dim = config_.head_dim;
  Scratch& scratch = scratch_.front();
  scratch.out.assign(merge.heads * head_dim, 0.0f);
  scratch.lse.assign(merge.heads, -std::numeric_limits<float>::infinity());
  for (uint32_t piece = 0; piece < merge.pieces; ++piece) {
    for (uint32_t head = 0; head < merge.heads; ++head) {
      const size_t partial = merge.partial + piece * merge.heads + head;
      kernels::merge_partial(&scratch.out[head * head_dim], &scratch.lse[head],
                             &partial_out_[partial * head_dim], partial_lse_[partial], head_dim);
    }
  }
  AttentionJob job;
  job.step = merge.step;
  job.row = merge.row;
  job.rows = 1;
  job.head = merge.head;
  job.heads = merge.heads;
  finish(call, job, scratch.out.data(), scratch.lse.data());
}

}  // namespace reprise
