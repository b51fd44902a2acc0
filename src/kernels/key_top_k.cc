#include "kernels/key_top_k.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu.h"
#include "kernels/key_logits.h"
#include "kernels/key_top_k_isa.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 16;

// Many rows find a block's keys in the cache; for a few, blocks are as long as their scores leave
// room for in it, since no key is fetched ahead of a block.
size_t block_pages(size_t rows) { return rows <= 4 ? 256 : 32; }

bool uses_amx(const KeyTopKArgs& args) {
  return cpu_isa() == Isa::kAmx && args.phase == Phase::kPrefill &&
         rounds_to_bf16(args.layout->type);
}

void offer(const ScoreBlock& block, size_t k, RankedKey* best) {
  form<offer_ref, offer_ref, offer_avx512>()(block, k, best);
}

// A block of pages for all rows, whose keys stay in the cache meanwhile.
void scan_block(const KeyTopKArgs& args, size_t first, size_t count, float* scores) {
  KeyLogitsArgs logits;
  logits.layout = args.layout;
  logits.q_stride = args.q_stride;
  logits.pages = args.pages.subspan(first, count);
  logits.out = scores;
  logits.out_stride = block_pages(args.rows) * kPageTokens;
  for (size_t row = 0; row < args.rows; row += kGroupRows) {
    logits.rows = std::min(kGroupRows, args.rows - row);
    logits.q = args.q + row * args.q_stride;
    key_logits(logits);
    offer({scores, logits.out_stride, logits.rows, logits.pages.data(), count}, args.k,
          args.best + row * args.k);
  }
}

}  // namespace

void offer_ref(const ScoreBlock& block, size_t k, RankedKey* best) {
  for (size_t row = 0; row < block.rows; ++row) {
    RankedKey* list = best + row * k;
    for (size_t i = block.count * kPageTokens; i-- > 0;) {
      const PageSpan& page = block.pages[i / kPageTokens];
      const size_t slot = i % kPageTokens;
      const float score = block.scores[row * block.stride + i];
      if ((page.slots >> slot & 1) == 0 || !(score > list[k - 1].score)) continue;
      insert_ranked(list, k, score, page.index + static_cast<int32_t>(slot));
    }
  }
}

void key_top_k(const KeyTopKArgs& args, std::byte* scratch) {
  std::fill_n(args.best, args.rows * args.k,
              RankedKey{-std::numeric_limits<float>::infinity(), -1});
#if defined(__x86_64__)
  if (uses_amx(args)) return key_top_k_amx(args, scratch);
#endif
  for (size_t end = args.pages.size(); end > 0;) {
    const size_t count = std::min(block_pages(args.rows), end);
    end -= count;
    scan_block(args, end, count, reinterpret_cast<float*>(scratch));
  }
}

size_t key_top_k_scratch_bytes(const KeyTopKArgs& args) {
  constexpr size_t kTile = 32, kAlignment = 64, kBuffers = 4;
  if (!uses_amx(args)) {
    return std::min(kGroupRows, args.rows) * block_pages(args.rows) * kPageTokens * sizeof(float);
  }
  const size_t dims = (args.layout->head_dim + kTile - 1) / kTile * kTile;
  const size_t rows = (args.rows + kTile - 1) / kTile * kTile;
  const size_t block = 4 * kPageTokens;
  return (rows * dims + block * dims) * sizeof(uint16_t) + kTile * block * sizeof(float) +
         kAlignment * kBuffers;
}

}  // namespace reprise::kernels
