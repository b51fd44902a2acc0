// A whole policy in 40 lines: every n-th page, the first one and the last one.
#pragma once

#include "attention/policy.h"
#include "methods/page_list.h"
#include "reprise/options.h"

namespace reprise {

struct StridedOptions {
  uint32_t stride = 4;
};

template <class Visitor>
void visit_options(StridedOptions& o, Visitor&& visit) {
  visit(OptionSpec{"stride", "reads one page of so many", "pages", 1, 1 << 20}, o.stride);
}

class StridedPolicy : public Policy {
 public:
  StridedPolicy(const StridedOptions& options, const ModelConfig&) : stride_(options.stride) {}

  std::unique_ptr<Policy> fork() const override { return std::make_unique<StridedPolicy>(*this); }
  std::string prefill_key() const override { return std::string(kDensePrefill); }

  void select(const QueryRows& rows, Selection& selection) override {
    if (rows.phase == kernels::Phase::kPrefill) return;  // reads everything
    const auto last = (rows.end() - 1) / static_cast<int32_t>(kPageTokens);
    std::vector<int32_t> pages;
    for (int32_t page = 0; page < last; page += static_cast<int32_t>(stride_))
      pages.push_back(page);
    pages.push_back(last);
    selection.all = false;
    add_pages(selection.parts.emplace_back(), pages, rows.end());
  }

 private:
  uint32_t stride_;
};

}  // namespace reprise
