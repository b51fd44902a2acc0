// Which policy stands behind the decorators that devices know.
#pragma once

#include "methods/decorators/dense.h"

namespace reprise {

/// The policy of a kind that acts, behind `dense` or not; null: another one does.
template <class Kind>
const Kind* find_policy(const Policy& policy) {
  if (const auto* dense = dynamic_cast<const DensePolicy*>(&policy)) {
    return find_policy<Kind>(dense->wrapped());
  }
  return dynamic_cast<const Kind*>(&policy);
}

}  // namespace reprise
