// What tests of CSAttention in the whole engine on a device share.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cuda/session_testing.h"

namespace reprise::test {

inline const std::string kSmall = "csattention:activate=1,budget=96,window=16";

inline const std::string kPeriodic = kSmall + ",period=3,cosine=-1";

inline double figure(const Answer& answer, std::string_view name) {
  for (const auto& [own, value] : answer.counters.policy) {
    if (own == name) return value;
  }
  ADD_FAILURE() << "no figure " << name;
  return -1.0;
}

}  // namespace reprise::test
