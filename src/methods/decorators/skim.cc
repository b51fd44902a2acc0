#include "methods/decorators/skim.h"

#include <fmt/format.h>

#include <algorithm>

#include "methods/first_and_recent.h"

namespace reprise {

SkimPolicy::SkimPolicy(const SkimOptions& options, const ModelConfig&,
                       std::unique_ptr<Policy> inner)
    : PolicyDecorator(std::move(inner)), options_(options) {}

void SkimPolicy::select(const QueryRows& rows, Selection& selection) {
  inner().select(rows, selection);
  if (rows.phase != kernels::Phase::kPrefill || !selection.all) return;
  read_first_and_recent(rows, static_cast<int32_t>(options_.sink),
                        static_cast<int32_t>(options_.window), selection);
}

std::string SkimPolicy::prefill_key() const {
  const std::string key = inner().prefill_key();
  return key.empty() ? key : fmt::format("skim:{},{}+{}", options_.sink, options_.window, key);
}

int32_t SkimPolicy::next_cut(int32_t position) const {
  const int32_t next = inner().next_cut(position);
  const auto full = static_cast<int32_t>(options_.sink + options_.window);
  return position < full ? std::min(next, full) : next;
}

}  // namespace reprise
