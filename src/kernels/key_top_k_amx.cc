// The k best keys with AMX tiles: 32 rows by 64 keys at a time, from the last page to the first. K
// tiles multiply as they are stored.
#include "kernels/amx_tiles.h"
#include "kernels/attention_tiles.h"
#include "kernels/key_offer_avx512.h"
#include "kernels/softmax_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 2 * kTileRows, kBlockKeys = kOfferPages * kPageTokens, kLine = 64;

struct Buffers {
  size_t dims;     // head_dim rounded up to kTileBf16
  size_t rows;     // rows rounded up to kGroupRows
  uint16_t* q;     // [rows, dims] bf16, zero beyond head_dim and the last row
  uint32_t* keys;  // [kOfferPages][dims / 2][16] tiles that are not read in place
  float* scores;   // [kGroupRows, kBlockKeys]
};

Buffers carve(const KeyTopKArgs& args, std::byte* scratch) {
  Buffers b;
  b.dims = (args.layout->head_dim + kTileBf16 - 1) / kTileBf16 * kTileBf16;
  b.rows = (args.rows + kGroupRows - 1) / kGroupRows * kGroupRows;
  Arena arena(scratch);
  b.q = arena.take<uint16_t>(b.rows * b.dims);
  b.keys = arena.take<uint32_t>(kBlockKeys * b.dims / 2);
  b.scores = arena.take<float>(kGroupRows * kBlockKeys);
  return b;
}

void round_rows(const KeyTopKArgs& args, const Buffers& b) {
  const size_t head_dim = args.layout->head_dim;
  __builtin_memset(b.q, 0, b.rows * b.dims * sizeof(uint16_t));
  for (size_t row = 0; row < args.rows; ++row) {
    for (size_t dim = 0; dim < head_dim; dim += kTileFloats) {
      const __mmask16 lanes = first_lanes(static_cast<unsigned>(head_dim - dim));
      const __m512 x = _mm512_maskz_loadu_ps(lanes, args.q + row * args.q_stride + dim);
      const __m256bh packed = _mm512_cvtneps_pbh(x);
      _mm256_mask_storeu_epi16(b.q + row * b.dims + dim, lanes, (__m256i)packed);
    }
  }
  if (head_dim != b.dims) __builtin_memset(b.keys, 0, kBlockKeys * b.dims * sizeof(uint16_t));
}

// Tiles of up to four pages; past the end of the list the last repeats.
void find_tiles(const KeyTopKArgs& args, const PageSpan* pages, size_t count, const Buffers& b,
                const uint32_t* (&k)[kOfferPages]) {
  const bool stored = args.layout->type == KvType::kBF16 && args.layout->head_dim == b.dims;
  AttendArgs tile_args;
  tile_args.layout = args.layout;
  for (size_t p = 0; p < kOfferPages; ++p) {
    if (p >= count) {
      k[p] = k[count - 1];
      continue;
    }
    k[p] = reinterpret_cast<const uint32_t*>(pages[p].k);
    if (stored) continue;
    uint32_t* tile = b.keys + p * kPageTokens * b.dims / 2;
    bf16_k_tile_avx512(tile_args, pages[p], tile);
    k[p] = tile;
  }
}

// Brings part `share` of `shares` of some pages' tiles closer.
void prefetch_tiles(const KeyTopKArgs& args, const PageSpan* pages, size_t count, size_t share,
                    size_t shares) {
  const size_t bytes = args.layout->tile_bytes(), piece = (bytes / kLine / shares + 1) * kLine;
  for (size_t p = 0; p < count; ++p) {
    for (size_t at = share * piece; at < (share + 1) * piece && at < bytes; at += kLine) {
      _mm_prefetch(reinterpret_cast<const char*>(pages[p].k + at), _MM_HINT_T1);
    }
  }
}

}  // namespace

void key_top_k_amx(const KeyTopKArgs& args, std::byte* scratch) {
  const Buffers b = carve(args, scratch);
  round_rows(args, b);
  load_tile_config();
  const uint32_t* k[kOfferPages];
  for (size_t end = args.pages.size(); end > 0;) {
    const size_t count = end < kOfferPages ? end : kOfferPages;
    end -= count;
    const PageSpan* pages = args.pages.data() + end;
    const size_t next = end < kOfferPages ? end : kOfferPages;
    find_tiles(args, pages, count, b, k);
    for (size_t row = 0; row < args.rows; row += kGroupRows) {
      prefetch_tiles(args, pages - next, next, row / kGroupRows, b.rows / kGroupRows);
      multiply_keys(b.q + row * b.dims, k, (count + 1) / 2 * 2, b.dims, b.scores, kBlockKeys);
      const size_t rows = args.rows - row < kGroupRows ? args.rows - row : kGroupRows;
      offer_block({b.scores, kBlockKeys, rows, pages, count}, args.k, args.best + row * args.k);
    }
  }
  _tile_release();
}

}  // namespace reprise::kernels
