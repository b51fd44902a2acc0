#include "kernels/key_offer_avx512.h"

namespace reprise::kernels {

void offer_avx512(const ScoreBlock& block, size_t k, RankedKey* best) {
  for (size_t end = block.count; end > 0;) {
    const size_t count = end < kOfferPages ? end : kOfferPages;
    end -= count;
    offer_block(
        {block.scores + end * kPageTokens, block.stride, block.rows, block.pages + end, count}, k,
        best);
  }
}

}  // namespace reprise::kernels
