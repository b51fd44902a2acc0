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

/// That a prefill row may not ask for what only decode rows have.
inline void expect_refused_in_prefill(ScriptedPolicy::Script script) {
  Toy toy({}, 20);
  ScriptedPolicy policy(std::move(script));
  SequenceKv kv = toy.new_sequence();
  EXPECT_TRUE(kv.reserve(1));
  const Row row = {0, 0, 0};
  const SequenceStep step = {&kv, &policy, 0, 1, kernels::Phase::kPrefill};
  toy.executor().begin({&row, 1}, {&step, 1});
  std::vector<float> out(toy.width());
  const Status status = toy.executor().attend(0, toy.q(0, 0), toy.k(0, 0), toy.v(0, 0), out.data());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
}

}  // namespace reprise::testing
