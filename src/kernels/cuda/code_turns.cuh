// Rows whose turn it is to search, where a search serves several rows (CodeRules::period), share
// all blocks.
#pragma once

#include "kernels/cuda/code_splits.cuh"

namespace reprise::kernels::cuda {

__device__ inline uint32_t page_count(int32_t keys) {
  return (static_cast<uint32_t>(keys) + kPageTokens - 1) / kPageTokens;
}

/// A list of pages of a table, as it is written.
struct PageList {
  const uint32_t* table;
  uint32_t *pages, *numbers;  // numbers: perhaps null

  /// a: of lists, the index-th is meant.
  template <typename Args>
  __device__ PageList(const Args& a, const uint32_t* table, size_t index)
      : table(table),
        pages(a.lists + index * a.list_capacity),
        numbers(a.numbers != nullptr ? a.numbers + index * a.list_capacity : nullptr) {}

  __device__ void write(uint32_t at, uint32_t page) const { write_entry(at, page, table[page]); }
  /// entry: the page's in the table.
  __device__ void write_entry(uint32_t at, uint32_t page, uint32_t entry) const {
    pages[at] = entry;
    if (numbers != nullptr) numbers[at] = page;
  }
  /// Pages [begin, end). All threads of the block call.
  __device__ void write(uint32_t at, uint32_t begin, uint32_t end) const {
    for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x) write(at + i - begin, i);
  }
};

/// The pages of a KV head that a row reads: sinks, chosen ones, and those from recent on.
struct PagesRead {
  uint32_t sinks, chosen, recent, end;
  int32_t keys_seen;

  /// last: what the row's last search was about, perhaps range itself.
  __device__ PagesRead(const CodeRules& rules, const CodeRange& range, const CodeRange& last)
      : sinks(static_cast<uint32_t>(rules.sink) / kPageTokens),
        chosen(static_cast<uint32_t>(chosen_pages(rules, last))),
        recent(static_cast<uint32_t>(last.recent) / kPageTokens),
        end(page_count(range.end)),
        keys_seen(range.end) {}

  /// Among others.
  __device__ bool chooses() const { return chosen < recent - sinks; }
  __device__ int32_t keys() const {
    return keys_seen - static_cast<int32_t>((recent - sinks - chosen) * kPageTokens);
  }
  /// All but those that are chosen among others. All threads of the block call.
  __device__ void list_others(const PageList& list) const {
    list.write(0, 0, chooses() ? sinks : recent);
    list.write(sinks + chosen, recent, end);
  }
};

/// A lane's word about each of 32 rows from base on, as bits. All lanes of the warp call.
__device__ inline uint32_t due_rows(const uint32_t* due, uint32_t base, uint32_t end) {
  const uint32_t row = base + threadIdx.x % 32;
  return __ballot_sync(~0u, row < end && due[row] != 0);
}

/// Rows before end that are due; all of them without a list. All lanes of the warp call.
__device__ inline uint32_t count_due(const uint32_t* due, uint32_t end) {
  if (due == nullptr) return end;
  uint32_t count = 0;
  for (uint32_t base = 0; base < end; base += 32) count += __popc(due_rows(due, base, end));
  return count;
}

/// The n-th of count rows that is due, if there are so many. All lanes of the warp call.
__device__ inline uint32_t nth_due(const uint32_t* due, uint32_t count, uint32_t n) {
  if (due == nullptr) return n;
  for (uint32_t base = 0; base < count; base += 32) {
    const uint32_t rows = due_rows(due, base, count), lane = threadIdx.x % 32;
    const bool is_it = (rows >> lane & 1) != 0 && __popc(rows & ((1u << lane) - 1)) == n;
    const uint32_t found = __ballot_sync(~0u, is_it);
    if (found != 0) return base + static_cast<uint32_t>(__ffs(static_cast<int>(found))) - 1;
    n -= __popc(rows);
  }
  return count;
}

/// What a block does of the scores of a step's rows.
struct Turn {
  uint32_t count;          // rows that are due
  uint32_t index, row;     // which of them, of all rows; index >= count: none
  uint32_t split, splits;  // of the row's KV head

  /// splits: of a KV head if all rows were due.
  __device__ Turn(const CodeSearchArgs& a, uint32_t splits) {
    const uint32_t n = blockIdx.x / a.rows.shape.n_kv_head;
    count = count_due(a.due, a.rows.count);
    this->splits = turn_splits(a, splits, count);
    index = n / this->splits;
    split = n % this->splits;
    row = index < count ? nth_due(a.due, a.rows.count, index) : 0;
  }

  __device__ static uint32_t turn_splits(const CodeSearchArgs& a, uint32_t splits, uint32_t count) {
    if (a.due == nullptr || count == 0) return splits;
    return min(a.rows.count * splits / count, most_splits(a.rows.capacity));
  }
};

}  // namespace reprise::kernels::cuda
