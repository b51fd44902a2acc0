// Growth of long arrays that are added to bit by bit.
#pragma once

#include <cstddef>
#include <vector>

namespace reprise {

/// values.resize(size); keeps at most an eighth of unused room, where std::vector may double.
template <class T>
void grow(std::vector<T>& values, size_t size) {
  if (size > values.capacity()) values.reserve(values.empty() ? size : size + size / 8);
  values.resize(size);
}

}  // namespace reprise
