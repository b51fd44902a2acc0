// Attention of a few query rows over pages of one KV head: the one kernel behind every policy.
//
// Numerics: products are summed in float and the softmax is in float. Where the instruction set has
// bf16 products and the pages are bf16 or q8_0, their factors are bf16: q, the softmax weights, and
// keys and values that are rotated or scaled at read are rounded. Decode over q8_0 with AVX-512
// rounds q and the weights to 16 bits of a row's and a page's largest instead, and keys and values
// not at all. A row's result depends on its own q, its phase and on the list of pages in order, not
// on the other rows of the call; pages that it does not see change nothing, but for the last bits
// with AMX, whose decode sums pages by fours of the list and whose prefill ends a block at a page
// that comes again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kv_page.h"
#include "kernels/phase.h"

namespace reprise::kernels {

inline constexpr uint16_t kAllSlots = 0xffff;

/// Tokens of one page that are read. Row r sees slot t iff bit t of slots is set and
/// row_begin[r] <= index + t < row_end[r].
struct PageSpan {
  const std::byte* k = nullptr;  // K tile of the KV head
  const std::byte* v = nullptr;  // V tile of the KV head
  int32_t index = 0;             // key index of slot 0
  uint16_t slots = kAllSlots;
  const float* bias = nullptr;     // [16] added to the logits of every row, or null
  const float* cos_sin = nullptr;  // [slots 16][pairs][2]: rotate position-free keys, or null
};

struct AttendArgs {
  const KvLayout* layout = nullptr;
  Phase phase = Phase::kDecode;  // decode: few rows, bounded by reading KV; prefill: many rows
  size_t rows = 0;
  size_t heads = 1;                    // rows that lie side by side in q and out: one token's
  const float* q = nullptr;            // [rows, head_dim] rotated; not yet scaled
  size_t q_stride = 0;                 // floats between tokens
  const int32_t* row_begin = nullptr;  // [rows] first visible key index (0 without a window)
  const int32_t* row_end = nullptr;    // [rows] one past the last visible key index
  std::span<const PageSpan> pages;     // in ascending order of index
  std::span<const PageSpan> next;      // what a call after this one reads first, or nothing: a hint
  float scale = 1.0f;                  // applied to q.k
  float soft_cap = 0.0f;               // logit = cap tanh(logit / cap) when > 0
  size_t rope_pairs = 0;               // pairs rotated when a page has cos_sin
  float* out = nullptr;   // [rows, head_dim] normalised output; zero where nothing is visible
  size_t out_stride = 0;  // floats between tokens
  float* lse = nullptr;   // [rows] ln(sum of exp(logit)); -inf where nothing is visible
  /// Decode only, or null: [rows, 16 pages] gets the logits; -inf in slots that are not read.
  float* logits = nullptr;
  size_t logits_stride = 0;  // floats between rows

  [[gnu::always_inline]] const float* q_row(size_t row) const {
    return q + row / heads * q_stride + row % heads * layout->head_dim;
  }
  [[gnu::always_inline]] float* out_row(size_t row) const {
    return out + row / heads * out_stride + row % heads * layout->head_dim;
  }
};

/// out = softmax(scale q K^T) V and lse (Milakov & Gimelshein 2018, online softmax; Dao et al.
/// 2022, FlashAttention). Called from inside a parallel region: uses no threads itself; scratch is
/// [attend_scratch_bytes(args)], aligned as floats. Slots of a page that are not read may hold
/// anything finite.
void attend(const AttendArgs& args, std::byte* scratch);
size_t attend_scratch_bytes(const AttendArgs& args);

/// The same of several KV heads whose lists have equally many pages, at least one call: equal bits,
/// and where tiles of a page lie side by side they are read in that order, at the speed of a
/// stream, if streams_heads(). scratch: the sum of what the calls need.
void attend_heads(std::span<const AttendArgs> heads, std::byte* scratch);
/// Whether it does so with this instruction set; else it makes one call after the other.
bool streams_heads(const KvLayout& layout, Phase phase);

/// Merges partial b into a over the same query, in place: (out_a, lse_a) <- merge with (out_b,
/// lse_b). Empty partials (lse = -inf) are the identity.
void merge_partial(float* out_a, float* lse_a, const float* out_b, float lse_b, size_t head_dim);
/// The merge of pieces partials of one query, all at once. out [head_dim] and lse [1] come from
/// pieces_out [pieces, stride, head_dim] and pieces_lse [pieces, stride].
void merge_partials(const float* pieces_out, const float* pieces_lse, size_t pieces, size_t stride,
                    size_t head_dim, float* out, float* lse);

}  // namespace reprise::kernels
