// A policy whose selections a test writes down.
#pragma once

#include <functional>
#include <vector>

#include "attention/toy.h"

namespace reprise::testing {

/// Selects what a function says.
class ScriptedPolicy : public Policy {
 public:
  using Script = std::function<void(const QueryRows&, Selection&)>;
  explicit ScriptedPolicy(Script script = {}, bool position_free = false)
      : script_(std::move(script)), position_free_(position_free) {}
  std::unique_ptr<Policy> fork() const override { return std::make_unique<ScriptedPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override {
    if (script_) script_(rows, selection);
  }
  bool position_free() const override { return position_free_; }

 private:
  Script script_;
  bool position_free_;
};

inline SelectionPart& add_part(Selection& selection, std::vector<KeyRange> ranges) {
  selection.all = false;
  SelectionPart& part = selection.parts.emplace_back();
  part.add_list(ranges);
  return part;
}

}  // namespace reprise::testing
