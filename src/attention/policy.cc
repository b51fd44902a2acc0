#include "attention/policy.h"

#include <algorithm>

namespace reprise {

bool keys_present(const SequenceKv& kv, uint32_t layer, int32_t begin, int32_t end) {
  if (begin >= end) return true;
  const size_t first = static_cast<size_t>(begin) / kPageTokens;
  const size_t last = (static_cast<size_t>(end) + kPageTokens - 1) / kPageTokens;
  const auto pages = kv.pages(layer).subspan(first, last - first);
  return std::find(pages.begin(), pages.end(), kNoPage) == pages.end();
}

bool Policy::can_resume(const SequenceKv& kv, int32_t length) const {
  for (uint32_t layer = 0; layer < kv.pool().layers(); ++layer) {
    if (!keys_present(kv, layer, 0, length)) return false;
  }
  return true;
}

Status Policy::restore_state(std::string_view state, int32_t /*length*/) {
  if (state.empty()) return {};
  return fail(ErrorCode::kCorrupt, "{} bytes of state for a policy that keeps none", state.size());
}

}  // namespace reprise
