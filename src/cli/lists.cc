#include "cli/lists.h"

#include <algorithm>

#include "base/try.h"

namespace reprise::cli {

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

Result<std::vector<uint32_t>> parse_list(const OptionSpec& spec, std::string_view text) {
  std::vector<uint32_t> numbers;
  for (const std::string& part : split_list(text)) {
    Status status = parse_option(spec, part, numbers.emplace_back());
    if (status) continue;
    status.error().message.insert(0, "--");
    return tl::unexpected(std::move(status.error()));
  }
  return numbers;
}

}  // namespace reprise::cli
