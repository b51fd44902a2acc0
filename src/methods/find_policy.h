// Which policy stands behind decorators.
#pragma once

#include "attention/policy.h"

namespace reprise {

/// The policy of a kind, itself or behind decorators; null: there is none.
template <class Kind>
const Kind* find_policy(const Policy& policy) {
  if (const auto* found = dynamic_cast<const Kind*>(&policy)) return found;
  const auto* decorator = dynamic_cast<const PolicyDecorator*>(&policy);
  return decorator != nullptr ? find_policy<Kind>(decorator->wrapped()) : nullptr;
}

}  // namespace reprise
