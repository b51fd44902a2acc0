// What tests look at in a policy of MAC-Attention.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "methods/mac/mac.h"
#include "methods/mac_toy.h"

namespace reprise::testing {

inline double figure(const Policy& policy, const std::string& name) {
  return stats_of(policy).at(name);
}

/// The ring of a layer as the policy of a sequence of length tokens saves it.
inline MacRing saved_ring(const Policy& policy, const ModelConfig& config, uint32_t window,
                          uint32_t layer, int32_t length) {
  const std::string state = policy.save_state();
  StateReader in(state);
  std::vector<char> inner;
  in.array(inner, in.value<uint64_t>());
  MacRing ring(config, window);
  for (uint32_t i = 0; i <= layer; ++i) {
    if (in.value<uint8_t>() == 0) continue;
    MacLayerGuard(config.n_kv_head, 0).restore(in);
    in.value<int32_t>();  // from where on the guard counts
    ring.restore(in, length);
  }
  EXPECT_TRUE(in.ok());
  return ring;
}

}  // namespace reprise::testing
