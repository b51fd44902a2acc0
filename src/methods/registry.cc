#include "methods/registry.h"

#include "methods/baselines/full.h"
#include "methods/baselines/streaming.h"

namespace reprise {

std::span<const PolicyEntry> policy_entries() {
  static const std::vector<PolicyEntry> entries = {
      policy_entry<FullPolicy, FullOptions>("full", "every visible key; exact",
                                            "Vaswani et al. 2017"),
      policy_entry<StreamingPolicy, StreamingOptions>(
          "streaming", "the first keys and a recent window; constant memory, endless generation",
          "StreamingLLM, Xiao et al. 2024"),
  };
  return entries;
}

}  // namespace reprise
