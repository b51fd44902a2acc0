// Instruction sets as a parameter of tests.
#pragma once

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "kernels/cpu.h"

namespace reprise::kernels {

/// Sets the instruction set for a scope, if the machine has it.
class IsaScope {
 public:
  explicit IsaScope(Isa isa) : former_(cpu_isa()), available_(set_cpu_isa(isa)) {}
  ~IsaScope() { set_cpu_isa(former_); }
  IsaScope(const IsaScope&) = delete;
  IsaScope& operator=(const IsaScope&) = delete;
  bool available() const { return available_; }

 private:
  Isa former_;
  bool available_;
};

/// Those that this machine has.
inline std::vector<Isa> machine_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (IsaScope(isa).available()) isas.push_back(isa);
  }
  return isas;
}

inline Isa isa_of(Isa isa) { return isa; }
template <class... Others>
Isa isa_of(const std::tuple<Isa, Others...>& param) {
  return std::get<0>(param);
}

/// A test of the instruction set that its parameter is, or begins with; skipped without it.
template <class Param = Isa>
class IsaTest : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (!scope_.available()) GTEST_SKIP() << "not on this machine";
  }

 private:
  IsaScope scope_{isa_of(this->GetParam())};
};

}  // namespace reprise::kernels
