// What tests of CSAttention in the whole engine on a device share.
#pragma once

#include <string>

#include "cuda/session_testing.h"

namespace reprise::test {

inline const std::string kSmall = "csattention:activate=1,budget=96,window=16";

inline const std::string kPeriodic = kSmall + ",period=3,cosine=-1";

}  // namespace reprise::test
