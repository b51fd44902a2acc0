#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/attention_isa.h"
#include "kernels/attention_rows.h"
#include "kernels/cpu.h"

namespace reprise::kernels {
namespace {

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Kernels skip pages that no row sees.
void clear_logits(const AttendArgs& args) {
  for (size_t r = 0; args.logits != nullptr && r < args.rows; ++r) {
    std::fill_n(args.logits + r * args.logits_stride, args.pages.size() * kPageTokens,
                -std::numeric_limits<float>::infinity());
  }
}

// Whether AMX computes a call. It would have to widen tiles that are not bf16 for the few rows of
// decode, which takes longer than to multiply them in registers.
bool on_tiles(const KvLayout& layout, Phase phase, Isa isa) {
  if (isa != Isa::kAmx) return false;
  if (phase == Phase::kPrefill) return rounds_to_bf16(layout.type);
  return layout.type == KvType::kBF16 && layout.head_dim % 32 == 0;
}

void attend_each_ref(std::span<const AttendArgs> heads, std::byte* scratch) {
  for (const AttendArgs& args : heads) attend_ref(args, scratch);
}

void attend_stream(std::span<const AttendArgs> heads, std::byte* scratch) {
  form<attend_each_ref, attend_decode_avx2, attend_decode_avx512>()(heads, scratch);
}

// Prefill, and decode that is not streamed.
void attend_beside_tiles(const AttendArgs& args, std::byte* scratch) {
  if constexpr (kHighestIsa == Isa::kAmx) {
    if (args.phase == Phase::kDecode) return attend_decode_amx(args, scratch);
    if (on_tiles(*args.layout, args.phase, Isa::kAmx)) return attend_prefill_amx(args, scratch);
    attend_prefill_avx512(args, scratch);
  }
}

}  // namespace

void attend(const AttendArgs& args, std::byte* scratch) {
  clear_logits(args);
  if (streams_heads(*args.layout, args.phase)) return attend_stream({&args, 1}, scratch);
  form<attend_ref, attend_prefill_avx2, attend_prefill_avx512, attend_beside_tiles>()(args,
                                                                                      scratch);
}

bool streams_heads(const KvLayout& layout, Phase phase) {
  const Isa isa = cpu_isa();
  return phase == Phase::kDecode && isa >= Isa::kAvx2 && !on_tiles(layout, phase, isa);
}

void attend_heads(std::span<const AttendArgs> heads, std::byte* scratch) {
  if (streams_heads(*heads[0].layout, heads[0].phase)) {
    for (const AttendArgs& args : heads) clear_logits(args);
    return attend_stream(heads, scratch);
  }
  for (const AttendArgs& args : heads) attend(args, scratch);
}

size_t attend_scratch_bytes(const AttendArgs& args) {
  constexpr size_t kTile = 32, kKeys = kMaxBlockPages * kPageTokens, kAlignment = 64, kBuffers = 16;
  const size_t dims = round_up(args.layout->head_dim, kTile), rows = round_up(args.rows, kTile);
  const size_t row_state = 3 * dims + 2 * kPageTokens;        // q, sums of values, sum, max
  const size_t block = 2 * kKeys * dims + 2 * kKeys * kTile;  // keys, values, logits, weights
  const size_t list = args.pages.size() * kPageTokens;
  return (rows * row_state + block + list) * sizeof(float) + kAlignment * kBuffers;
}

size_t next_block(const AttendArgs& args, size_t first, size_t size, PageBlock& block) {
  const PageSpan* pages = args.pages.data();
  std::fill_n(block.pages, kMaxBlockPages, nullptr);
  const auto page_number = [&](size_t i) {
    return static_cast<size_t>(pages[i].index) / kPageTokens;
  };
  block.slots = size;
  const size_t range = page_number(first) / size;
  size_t free_slot = 0;
  for (; first < args.pages.size() && page_number(first) / size == range; ++first) {
    const size_t slot = page_number(first) % size;
    if (slot < free_slot) break;  // the same page again
    block.pages[slot] = pages + first;
    free_slot = slot + 1;
  }
  return first;
}

RowWindow row_window(const AttendArgs& args, size_t row, size_t rows) {
  RowWindow window = {args.row_begin[row], args.row_end[row], args.row_begin[row],
                      args.row_end[row]};
  for (size_t r = row + 1; r < row + rows; ++r) {
    window.first = std::min(window.first, args.row_begin[r]);
    window.last = std::max(window.last, args.row_end[r]);
    window.all_first = std::max(window.all_first, args.row_begin[r]);
    window.all_last = std::min(window.all_last, args.row_end[r]);
  }
  return window;
}

void merge_partial(float* out_a, float* lse_a, const float* out_b, float lse_b, size_t head_dim) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  if (lse_b == kEmpty) return;
  if (*lse_a == kEmpty) {
    std::memcpy(out_a, out_b, head_dim * sizeof(float));
    *lse_a = lse_b;
    return;
  }
  const float largest = std::max(*lse_a, lse_b);
  const float weight_a = std::exp(*lse_a - largest), weight_b = std::exp(lse_b - largest);
  const float total = weight_a + weight_b;
  const float share_a = weight_a / total, share_b = weight_b / total;
  for (size_t d = 0; d < head_dim; ++d) out_a[d] = share_a * out_a[d] + share_b * out_b[d];
  *lse_a = largest + std::log(total);
}

void merge_partials(const float* pieces_out, const float* pieces_lse, size_t pieces, size_t stride,
                    size_t head_dim, float* out, float* lse) {
  std::fill_n(out, head_dim, 0.0f);
  *lse = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < pieces; ++i) *lse = std::max(*lse, pieces_lse[i * stride]);
  if (std::isinf(*lse)) return;
  float total = 0.0f;
  for (size_t i = 0; i < pieces; ++i) {
    const float weight = std::exp(pieces_lse[i * stride] - *lse);
    const float* piece = pieces_out + i * stride * head_dim;
    total += weight;
    for (size_t d = 0; d < head_dim; ++d) out[d] += weight * piece[d];
  }
  for (size_t d = 0; d < head_dim; ++d) out[d] /= total;
  *lse += std::log(total);
}

}  // namespace reprise::kernels
