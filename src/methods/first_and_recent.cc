#include "methods/first_and_recent.h"

#include <algorithm>

namespace reprise {

void read_first_and_recent(const QueryRows& rows, int32_t sink, int32_t window,
                           Selection& selection) {
  const int32_t first = rows.first(), end = rows.end();
  if (end <= sink + window) return;
  selection.all = false;
  const KeyRange sinks = {0, std::min(sink, end)};
  selection.parts.emplace_back().add_list({&sinks, 1});
  SelectionPart& recent = selection.parts.emplace_back();
  recent.window = window;
  const KeyRange range = {std::max(sink, first - window + 1), end};
  if (range.begin < end)
    recent.add_list({&range, 1});
  else
    recent.add_list({});
}

}  // namespace reprise
