// Numbers and tables as people read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace reprise::cli {

/// 1234567 -> "1,234,567".
std::string grouped(uint64_t number);

/// For a terminal: control characters and bytes that are not UTF-8 as escapes, all else as it is.
std::string escaped(std::string_view text);

/// Columns padded to their widest cell; the first row is the head.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : rows_{std::move(head)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// right: from this column on, cells are aligned to the right.
  std::string text(size_t right = 1) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace reprise::cli
