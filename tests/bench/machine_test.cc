#include "bench/machine.h"

#include <gtest/gtest.h>

#include <cmath>

namespace reprise {
namespace {

TEST(Machine, MeasuresSomething) {
  ThreadPool pool(2);
  const MachineRoof roof = measure_machine(pool, ReadProbe(pool));
  EXPECT_TRUE(std::isfinite(roof.read_gb_s));
  EXPECT_GT(roof.read_gb_s, 0);
  for (const double speed : {roof.bf16_tflop_s, roof.quantised_tflop_s}) {
    EXPECT_TRUE(std::isfinite(speed));
    EXPECT_GT(speed, 0);
  }
}

TEST(Machine, ReadsWorkingSetsOfAnySize) {
  ThreadPool pool(2);
  const ReadProbe probe(pool);
  for (const size_t bytes : {size_t{1}, (size_t{4} << 20) + 1, size_t{512} << 20, SIZE_MAX}) {
    const double speed = probe.gb_s(bytes);
    EXPECT_TRUE(std::isfinite(speed)) << bytes;
    EXPECT_GT(speed, 0) << bytes;
  }
}

}  // namespace
}  // namespace reprise
