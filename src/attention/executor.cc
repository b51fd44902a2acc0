#include "attention/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/try.h"
#include "kernels/ops.h"

namespace reprise {
namespace {

/// Positions at which a selection reads position-free keys.
size_t positions_read(const Selection& selection, int32_t length) {
  size_t keys = 0;
  if (selection.all || selection.parts.empty()) return static_cast<size_t>(length);
  for (const SelectionPart& part : selection.parts) {
    if (!part.packed) return static_cast<size_t>(length);
    for (const KeyRange& range : part.ranges) keys += static_cast<size_t>(range.end - range.begin);
  }
  return keys;
}

constexpr size_t kTaskRows = 16;  // rows of one task, and up to a page's more

// How many rows, from the first one on, lie at consecutive positions.
size_t consecutive(std::span<const Row> rows) {
  const auto gap = std::ranges::adjacent_find(
      rows, [](const Row& a, const Row& b) { return b.position != a.position + 1; });
  return gap == rows.end() ? rows.size() : static_cast<size_t>(gap - rows.begin()) + 1;
}

double elapsed_ms(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since)
      .count();
}

}  // namespace

CpuExecutor::CpuExecutor(const ModelConfig& config, std::span<const RopeTable* const> ropes,
                         ThreadPool& pool, Prefetch prefetch)
    : config_(config),
      pool_(pool),
      rotation_(ropes),
      plan_(config),
      pager_(config, pool, prefetch),
      scratch_(static_cast<size_t>(pool.size()) * config.n_kv_head) {}

void CpuExecutor::begin(std::span<const Row> rows, std::span<const SequenceStep> steps) {
  rows_ = rows;
  steps_ = steps;
  selections_.resize(steps.size());
  groups_.clear();
  costs_.assign(steps.size(), {});
  rotation_.begin(rows, pool_);
  pager_.begin(rows, steps);
  list_store_tasks();
}

void CpuExecutor::list_store_tasks() {
  row_steps_.clear();
  for (size_t i = 0; i < steps_.size(); ++i) {
    row_steps_.resize(row_steps_.size() + steps_[i].rows, static_cast<uint32_t>(i));
  }
  const auto same_page = [&](size_t a, size_t b) {
    constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
    return step_of(a).kv == step_of(b).kv &&
           rows_[a].position / kTokens == rows_[b].position / kTokens;
  };
  store_tasks_ = {0};
  for (size_t row = kTaskRows; row < rows_.size(); row += kTaskRows) {
    while (row < rows_.size() && same_page(row - 1, row)) ++row;
    store_tasks_.push_back(row);
  }
  if (store_tasks_.back() < rows_.size()) store_tasks_.push_back(rows_.size());
}

Status CpuExecutor::attend(uint32_t layer, float* q, float* k, float* v, float* out) {
  REPRISE_CHECK(hold_and_store(layer, q, k, v));
  const Status status = compute(layer, q, out);
  if (pager_.active()) pager_.finish(layer);
  fetch_written(layer + 1);
  return status;
}

// A token is spread over all lines of its keys' tiles, which no cache has had since the last token:
// while the layer's products are computed they come.
void CpuExecutor::fetch_written(uint32_t layer) const {
  constexpr size_t kMost = 16384, kLine = 64;
  if (layer >= config_.n_layer || pager_.active()) return;
  if (rows_.size() * steps_[0].kv->pool().layout().page_bytes() > kMost) return;
  for (size_t row = 0; row < rows_.size(); ++row) {
    const SequenceKv& kv = *step_of(row).kv;
    const std::byte* page = kv.page(layer, static_cast<size_t>(rows_[row].position) / kPageTokens);
    for (size_t i = 0; i < kv.pool().layout().page_bytes(); i += kLine) {
      __builtin_prefetch(page + i, 1);
    }
  }
}

Status CpuExecutor::store(uint32_t layer, const float* q, float* k, const float* v) {
  REPRISE_CHECK(hold_and_store(layer, q, k, v));
  if (pager_.active()) pager_.finish(layer);
  return {};
}

Status CpuExecutor::hold_and_store(uint32_t layer, const float* q, float* k, const float* v) {
  if (pager_.active()) {
    if (Status held = pager_.hold_written(layer); !held) {
      pager_.finish(layer);
      return held;
    }
  }
  rotate_and_store(layer, q, k, v);
  return {};
}

Status CpuExecutor::compute(uint32_t layer, const float* q, float* out) {
  before_ = costs_;
  REPRISE_CHECK(select(layer, q));
  const auto start = std::chrono::steady_clock::now();
  const size_t head_dim = config_.head_dim;
  partial_out_.resize(std::max(partial_out_.size(), plan_.partials() * head_dim));
  partial_lse_.resize(std::max(partial_lse_.size(), plan_.partials()));
  const Call call = {layer, q, out};
  if (groups_.empty() || !plan_.kept()) group_jobs();
  pool_.run(groups_.size() - 1, [&](size_t group, int thread) {
    const size_t first = groups_[group], count = groups_[group + 1] - first;
    const auto jobs = plan_.jobs().subspan(first, count);
    const size_t heads = config_.n_kv_head;
    const auto scratch = std::span(scratch_).subspan(static_cast<size_t>(thread) * heads, heads);
    if (count == 1) return run(call, jobs[0], scratch[0]);
    run_together(call, jobs, scratch);
  });
  for (const PieceMerge& merge : plan_.merges()) merge_pieces(call, merge);
  finish_shares();
  use_mean_values(out);
  tell_policies(layer, q, out, elapsed_ms(start));
  return {};
}

void CpuExecutor::tell_policies(uint32_t layer, const float* q, const float* out,
                                double attend_ms) {
  uint64_t all_bytes = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    all_bytes += costs_[i].kv_bytes_read - before_[i].kv_bytes_read;
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    const SequenceStep& step = steps_[i];
    if (!step.policy->observes(layer, step.phase)) continue;
    const uint64_t bytes = costs_[i].kv_bytes_read - before_[i].kv_bytes_read;
    const double share = static_cast<double>(bytes) / std::max(1.0, static_cast<double>(all_bytes));
    const size_t first = size_t{step.first_row} * config_.n_head;
    step.policy->observe(query_rows(layer, i, q),
                         {out + first * config_.head_dim, &lse_[first],
                          costs_[i].select_ms - before_[i].select_ms, attend_ms * share});
  }
}

QueryRows CpuExecutor::query_rows(uint32_t layer, size_t index, const float* q,
                                  size_t steps) const {
  const SequenceStep &step = steps_[index], &last = steps_[index + steps - 1];
  const size_t first = size_t{step.first_row} * config_.n_head * config_.head_dim;
  return {layer,
          step.phase,
          rows_.subspan(step.first_row, last.first_row + last.rows - step.first_row),
          q + first,
          &q_rotated_[first],
          step.prompt_end,
          step.kv,
          &pool_,
          step.progress};
}

void CpuExecutor::rotate_and_store(uint32_t layer, const float* q, float* k, const float* v) {
  const size_t q_width = size_t{config_.n_head} * config_.head_dim, rows = rows_.size();
  q_rotated_.resize(std::max(q_rotated_.size(), rows * q_width));
  lse_.resize(std::max(lse_.size(), rows * config_.n_head));
  const size_t width = size_t{config_.n_kv_head} * config_.head_dim;
  const size_t pairs = rotation_.rope(layer).pairs();
  pool_.run(store_tasks_.size() - 1, [&](size_t task, int) {
    const size_t begin = store_tasks_[task], end = store_tasks_[task + 1];
    for (size_t row = begin; row < end; ++row) {
      const float* angles = rotation_.row(layer, row);
      std::memcpy(&q_rotated_[row * q_width], q + row * q_width, q_width * sizeof(float));
      kernels::rope(&q_rotated_[row * q_width], angles, config_.n_head, config_.head_dim, pairs);
      if (!step_of(row).policy->position_free()) {
        kernels::rope(k + row * width, angles, config_.n_kv_head, config_.head_dim, pairs);
      }
    }
    for (size_t row = begin, count = 0; row < end; row += count) {
      const SequenceStep& step = step_of(row);
      const auto position = static_cast<size_t>(rows_[row].position);
      const size_t slot = position % kPageTokens;
      const size_t last = std::min<size_t>(end, step.first_row + step.rows);
      count = consecutive(rows_.subspan(row, std::min(last - row, kPageTokens - slot)));
      kernels::store_tokens(step.kv->pool().layout(), step.kv->page(layer, position / kPageTokens),
                            slot, count, k + row * width, v + row * width);
    }
  });
}

Status CpuExecutor::foresee(uint32_t layer, size_t index, const float* q) {
  const SequenceKv* kv = steps_[index].kv;
  if (index > 0 && steps_[index - 1].kv == kv) return {};
  size_t steps = 1;
  while (index + steps < steps_.size() && steps_[index + steps].kv == kv) ++steps;
  if (steps == 1) return {};
  for (size_t i = index; i < index + steps && pager_.active(); ++i) {
    REPRISE_CHECK(pager_.hold_keys(query_rows(layer, i, q), i));
  }
  steps_[index].policy->foresee(query_rows(layer, index, q, steps));
  return {};
}

Status CpuExecutor::select(uint32_t layer, const float* q) {
  plan_.clear();
  for (size_t i = 0; i < steps_.size(); ++i) {
    const SequenceStep& step = steps_[i];
    const auto rows = rows_.subspan(step.first_row, step.rows);
    Selection& selection = selections_[i];
    selection.reset();
    if (config_.window[layer] == 0) {
      REPRISE_CHECK(foresee(layer, i, q));
      const QueryRows queries = query_rows(layer, i, q);
      if (pager_.active()) REPRISE_CHECK(pager_.hold_keys(queries, i));
      const auto start = std::chrono::steady_clock::now();
      step.policy->select(queries, selection);
      if (step.phase == kernels::Phase::kDecode) costs_[i].select_ms += elapsed_ms(start);
    }
    if (step.policy->position_free()) {
      rotation_.reserve_positions(layer, positions_read(selection, rows.back().position + 1),
                                  pool_);
    }
    if (Partial* captured = selection.captured) {
      captured->out.resize(rows.size() * config_.n_head * config_.head_dim);
      captured->lse.resize(rows.size() * config_.n_head);
    }
    const uint64_t keys = plan_.decode_keys(), pages = plan_.decode_pages();
    const size_t jobs = plan_.jobs().size();
    REPRISE_CHECK(plan_.add(layer, static_cast<uint32_t>(i), step, rows, selection));
    if (pager_.active()) {
      REPRISE_CHECK(pager_.hold_read(layer, i, plan_, jobs));
      pager_.expect_next_layer(query_rows(layer, i, q), i);
    }
    if (selection.shares != nullptr) REPRISE_CHECK(list_shares(i, jobs));
    if (step.phase != kernels::Phase::kDecode) continue;
    costs_[i].keys_read += plan_.decode_keys() - keys;
    costs_[i].kv_bytes_read +=
        (plan_.decode_pages() - pages) * 2 * step.kv->pool().layout().tile_bytes();
    costs_[i].index_bytes_read += selection.index_bytes_read;
    add_visible(config_, layer, step, rows, costs_[i]);
  }
  return {};
}

void CpuExecutor::group_jobs() {
  constexpr size_t kGroupsPerThread = 2;  // enough to even out the threads' speeds
  const auto jobs = plan_.jobs();
  const auto same_keys = [&](const AttentionJob& a, const AttentionJob& b) {
    if (a.reads != 1 || b.reads != 1 || a.step != b.step || a.row != b.row) return false;
    const KeyRead &x = plan_.reads(a)[0], &y = plan_.reads(b)[0];
    return x.part == y.part && x.first_block == y.first_block && x.blocks == y.blocks;
  };
  groups_.clear();
  for (uint32_t i = 0; i < jobs.size(); ++i) {
    const SequenceStep& step = steps_[jobs[i].step];
    const bool joins = i > 0 && same_keys(jobs[i - 1], jobs[i]) &&
                       i - groups_.back() < config_.n_kv_head &&
                       kernels::streams_heads(step.kv->pool().layout(), step.phase);
    if (!joins) groups_.push_back(i);
  }
  if (groups_.size() < kGroupsPerThread * static_cast<size_t>(pool_.size())) {
    groups_.resize(jobs.size());
    std::iota(groups_.begin(), groups_.end(), 0u);
  }
  groups_.push_back(static_cast<uint32_t>(jobs.size()));
}

CpuExecutor::Result CpuExecutor::result_of(const Call& call, const AttentionJob& job,
                                           Scratch& scratch) {
  const size_t width = size_t{job.heads} * config_.head_dim;
  if (job.partial != AttentionPlan::kDirect) {
    return {&partial_out_[job.partial * config_.head_dim], &partial_lse_[job.partial], width};
  }
  const size_t results = size_t{job.rows} * job.heads;
  scratch.lse.resize(std::max(scratch.lse.size(), results));
  return {call.out + first_of(job), scratch.lse.data(), size_t{config_.n_head} * config_.head_dim};
}

void CpuExecutor::run(const Call& call, const AttentionJob& job, Scratch& scratch) {
  const size_t head_dim = config_.head_dim, width = job.heads * head_dim;
  const size_t results = size_t{job.rows} * job.heads;
  const Result all = result_of(call, job, scratch);
  if (job.reads == 0) {
    for (size_t row = 0; row < job.rows; ++row)
      std::fill_n(all.out + row * all.stride, width, 0.0f);
    std::fill_n(all.lse, results, -std::numeric_limits<float>::infinity());
  }
  const auto reads = plan_.reads(job);
  const size_t at_once = job.joined ? reads.size() : 1;
  for (size_t first = 0; first < reads.size(); first += at_once) {
    const auto these = reads.subspan(first, at_once);
    if (first == 0) {
      read(call, job, these, scratch, all);
      continue;
    }
    scratch.more_out.resize(std::max(scratch.more_out.size(), results * head_dim));
    scratch.more_lse.resize(std::max(scratch.more_lse.size(), results));
    read(call, job, these, scratch, {scratch.more_out.data(), scratch.more_lse.data(), width});
    for (size_t i = 0; i < results; ++i) {
      float* out = all.out + i / job.heads * all.stride + i % job.heads * head_dim;
      kernels::merge_partial(out, all.lse + i, &scratch.more_out[i * head_dim], scratch.more_lse[i],
                             head_dim);
    }
  }
  if (job.partial == AttentionPlan::kDirect) finish(call, job, all.lse);
}

void CpuExecutor::run_together(const Call& call, std::span<const AttentionJob> jobs,
                               std::span<Scratch> scratch) {
  std::vector<kernels::AttendArgs>& heads = scratch[0].together;
  heads.resize(jobs.size());
  size_t bytes = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const KeyRead& read = plan_.reads(jobs[i])[0];
    if (i == 0) {
      scratch[i].pages.clear();
      add_pages(call.layer, jobs[i], read, read.blocks, scratch[i].pages);
    } else {
      gather_same_pages(jobs[0], scratch[0].pages, jobs[i], scratch[i].pages);
    }
    gather_next(call.layer, jobs[i], jobs.size(), scratch[i]);
    heads[i] = args_of(call, jobs[i], read, scratch[i], result_of(call, jobs[i], scratch[i]));
    bytes += kernels::attend_scratch_bytes(heads[i]);
  }
  std::vector<std::byte>& kernel = scratch[0].kernel;
  kernel.resize(std::max(kernel.size(), bytes));
  kernels::attend_heads(heads, kernel.data());
  for (size_t i = 0; i < jobs.size(); ++i) {
    pool_shares(jobs[i], scratch[i], heads[i].lse);
    if (jobs[i].partial == AttentionPlan::kDirect) finish(call, jobs[i], heads[i].lse);
  }
}

void CpuExecutor::read(const Call& call, const AttentionJob& job, std::span<const KeyRead> reads,
                       Scratch& scratch, const Result& result) {
  scratch.pages.clear();
  for (const KeyRead& read : reads) {
    add_pages(call.layer, job, read, read.blocks, scratch.pages);
  }
  gather_next(call.layer, job, 1, scratch);
  const kernels::AttendArgs args = args_of(call, job, reads.back(), scratch, result);
  scratch.kernel.resize(std::max(scratch.kernel.size(), kernels::attend_scratch_bytes(args)));
  kernels::attend(args, scratch.kernel.data());
  pool_shares(job, scratch, args.lse);
}

kernels::AttendArgs CpuExecutor::args_of(const Call& call, const AttentionJob& job,
                                         const KeyRead& read, Scratch& scratch,
                                         const Result& result) {
  const size_t results = size_t{job.rows} * job.heads;
  scratch.row_begin.resize(results);
  scratch.row_end.resize(results);
  const auto layer_window = static_cast<int32_t>(config_.window[call.layer]);
  for (size_t row = 0; row < job.rows; ++row) {
    const int32_t position = rows_[job.row + row].position;
    int32_t begin = job.joined ? kBeforeKeys : 0;
    for (const int32_t window : {layer_window, read.part->window}) {
      if (window > 0) begin = std::max(begin, position - window + 1);
    }
    const int32_t end = read.part->side ? read.part->side->length() : position + 1;
    std::fill_n(&scratch.row_begin[row * job.heads], job.heads, read.part->side ? 0 : begin);
    std::fill_n(&scratch.row_end[row * job.heads], job.heads, end);
    for (size_t head = 0; head < job.heads && !read.part->head_begin.empty(); ++head) {
      int32_t& first = scratch.row_begin[row * job.heads + head];
      first = std::max(first, read.part->head_begin[job.head + head]);
    }
  }
  kernels::AttendArgs args;
  args.layout = &steps_[job.step].kv->pool().layout();
  args.phase = steps_[job.step].phase;
  args.rows = results;
  args.heads = job.heads;
  args.q = &q_rotated_[first_of(job)];
  args.q_stride = size_t{config_.n_head} * config_.head_dim;
  const bool shifted = read.part->packed && read.part->row_shift() != 0;
  const int32_t last = rows_[job.row + job.rows - 1].position;
  if (shifted || last > read.part->max_query_position) {
    move_queries(call, job, *read.part, scratch);
    args.q = scratch.q.data();
    args.q_stride = size_t{job.heads} * config_.head_dim;
  }
  args.row_begin = scratch.row_begin.data();
  args.row_end = scratch.row_end.data();
  args.pages = scratch.pages;
  args.next = scratch.next;
  args.scale = config_.attention_scale;
  args.soft_cap = config_.attention_soft_cap;
  args.rope_pairs = rotation_.rope(call.layer).pairs();
  args.out = result.out;
  args.out_stride = result.stride;
  args.lse = result.lse;
  if (selections_[job.step].shares != nullptr) {
    args.logits_stride = size_t{read.blocks} * kPageTokens;
    scratch.logits.resize(std::max(scratch.logits.size(), results * args.logits_stride));
    args.logits = scratch.logits.data();
  }
  return args;
}

void CpuExecutor::move_queries(const Call& call, const AttentionJob& job, const SelectionPart& part,
                               Scratch& scratch) const {
  const RopeTable& rope = rotation_.rope(call.layer);
  const size_t width = size_t{job.heads} * config_.head_dim;
  const int32_t shift = part.packed ? part.row_shift() : 0;
  scratch.q.resize(std::max(scratch.q.size(), job.rows * width));
  scratch.cos_sin.resize(rope.pairs() * 2);
  bool capped = false;
  for (size_t row = 0; row < job.rows; ++row) {
    const size_t first = ((job.row + row) * config_.n_head + job.head) * config_.head_dim;
    float* q = &scratch.q[row * width];
    const int32_t position = rows_[job.row + row].position;
    const bool right_of_cap = position > part.max_query_position;
    const bool moved = right_of_cap || shift != 0;
    std::memcpy(q, (moved ? call.q : q_rotated_.data()) + first, width * sizeof(float));
    if (!moved) continue;
    if (!right_of_cap) {
      const float* angles = rotation_.keys(call.layer, position - shift);
      kernels::rope(q, angles, job.heads, config_.head_dim, rope.pairs());
      continue;
    }
    if (!capped) rope.cos_sin(part.max_query_position, scratch.cos_sin.data());
    capped = true;
    kernels::rope(q, scratch.cos_sin.data(), job.heads, config_.head_dim, rope.pairs());
  }
}

// A thread mostly takes jobs in their order, `together` at a time, and what it reads next can be on
// its way.
void CpuExecutor::gather_next(uint32_t layer, const AttentionJob& job, size_t together,
                              Scratch& scratch) const {
  constexpr size_t kPages = 4;
  scratch.next.clear();
  const auto later = plan_.jobs().subspan(static_cast<size_t>(&job - plan_.jobs().data()));
  if (later.size() <= together) return;
  const AttentionJob* next = &later[together];
  if (next->reads == 0) return;
  if (steps_[job.step].phase == kernels::Phase::kPrefill) return;
  add_pages(layer, *next, plan_.reads(*next).front(), kPages, scratch.next);
}

void CpuExecutor::add_pages(uint32_t layer, const AttentionJob& job, const KeyRead& read,
                            size_t most, std::vector<kernels::PageSpan>& pages) const {
  const SequenceStep& step = steps_[job.step];
  const SequenceKv& kv = read.part->side ? *read.part->side : *step.kv;
  const kernels::KvLayout& layout = kv.pool().layout();
  const size_t kv_head = job.head / (config_.n_head / config_.n_kv_head);
  const size_t k_offset = layout.k_offset(kv_head), v_offset = layout.v_offset(kv_head);
  const bool rotate = step.policy->position_free() && read.part->rotate_keys && !read.part->side;
  const int32_t first_key = job.joined && read.part->side ? kBeforeKeys : 0;
  for (const KeyBlock& block : plan_.blocks(read).first(std::min<size_t>(most, read.blocks))) {
    const std::byte* page = kv.page(read.part->pages_layer(layer), block.index);
    pages.push_back({page + k_offset, page + v_offset,
                     first_key + static_cast<int32_t>(block.index * kPageTokens), block.slots,
                     plan_.bias(block), rotate ? rotation_.keys(layer, block.position) : nullptr});
  }
}

// Those that another job reads of its own KV head: looking pages up costs more than this.
void CpuExecutor::gather_same_pages(const AttentionJob& other,
                                    std::span<const kernels::PageSpan> of_other,
                                    const AttentionJob& job,
                                    std::vector<kernels::PageSpan>& pages) const {
  const kernels::KvLayout& layout = steps_[job.step].kv->pool().layout();
  const size_t group = config_.n_head / config_.n_kv_head;
  const size_t from = other.head / group, to = job.head / group;  // from < to, as tiles lie
  const size_t distance = layout.k_offset(to) - layout.k_offset(from);
  pages.assign(of_other.begin(), of_other.end());
  for (kernels::PageSpan& page : pages) {
    page.k += distance;
    page.v += distance;
  }
}

void CpuExecutor::use_mean_values(float* out) const {
  const size_t head_dim = config_.head_dim, group = config_.n_head / config_.n_kv_head;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const MeanValue& mean = selections_[i].mean;
    for (size_t n = 0; n < mean.alpha.size(); ++n) {  // n = row * n_head + head
      const float* value = &mean.value[n % config_.n_head / group * head_dim];
      float* result = out + (size_t{steps_[i].first_row} * config_.n_head + n) * head_dim;
      for (size_t d = 0; d < head_dim; ++d) {
        result[d] = mean.alpha[n] * result[d] + (1.0f - mean.alpha[n]) * value[d];
      }
    }
  }
}

void CpuExecutor::finish(const Call& call, const AttentionJob& job, const float* lse) {
  const Selection& selection = selections_[job.step];
  const Partial* reused = selection.captured != nullptr ? selection.captured : selection.reused;
  for (size_t row = 0; row < job.rows; ++row) {
    const size_t first = (job.row + row) * config_.n_head + job.head;
    const size_t known = first - size_t{steps_[job.step].first_row} * config_.n_head;
    std::copy_n(lse + row * job.heads, job.heads, &lse_[first]);
    for (size_t head = 0; head < job.heads && reused != nullptr; ++head) {
      kernels::merge_partial(call.out + (first + head) * config_.head_dim, &lse_[first + head],
                             &reused->out[(known + head) * config_.head_dim],
                             reused->lse[known + head], config_.head_dim);
    }
  }
}

void CpuExecutor::merge_pieces(const Call& call, const PieceMerge& merge) {
  Scratch& scratch = scratch_.front();
  scratch.lse.resize(std::max<size_t>(scratch.lse.size(), merge.heads));
  AttentionJob job;
  job.step = merge.step;
  job.row = merge.row;
  job.rows = 1;
  job.head = merge.head;
  job.heads = merge.heads;
  float* const out = call.out + first_of(job);
  for (uint32_t head = 0; head < merge.heads; ++head) {
    sum_pieces(merge, merge.captured, merge.pieces, head, out + head * config_.head_dim,
               &scratch.lse[head]);
    if (selections_[merge.step].captured != nullptr) capture(merge, head);
  }
  finish(call, job, scratch.lse.data());
}

/// The result of pieces [first, last) for one head of the merge.
void CpuExecutor::sum_pieces(const PieceMerge& merge, uint32_t first, uint32_t last, uint32_t head,
                             float* out, float* lse) const {
  const size_t partial = merge.partial + size_t{first} * merge.heads + head;
  const bool reads = last > first;
  kernels::merge_partials(reads ? &partial_out_[partial * config_.head_dim] : nullptr,
                          reads ? &partial_lse_[partial] : nullptr, last - first, merge.heads,
                          config_.head_dim, out, lse);
}

void CpuExecutor::capture(const PieceMerge& merge, uint32_t head) {
  const Selection& selection = selections_[merge.step];
  const size_t row = merge.row - steps_[merge.step].first_row;
  const size_t result = row * config_.n_head + merge.head + head;
  float* out = &selection.captured->out[result * config_.head_dim];
  float* lse = &selection.captured->lse[result];
  sum_pieces(merge, 0, merge.captured, head, out, lse);
  if (selection.reused == nullptr) return;
  kernels::merge_partial(out, lse, &selection.reused->out[result * config_.head_dim],
                         selection.reused->lse[result], config_.head_dim);
}

}  // namespace reprise
