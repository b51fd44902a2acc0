// Every attention policy of the engine; adding a method adds its folder and one line here.
#pragma once

#include <span>

#include "attention/registry.h"

namespace reprise {

std::span<const PolicyEntry> policy_entries();

}  // namespace reprise
