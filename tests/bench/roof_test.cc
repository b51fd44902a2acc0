#include "bench/roof.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace reprise {
namespace {

/// The device, of which every figure was measured.
std::string measured(Roof& roof) {
  const MachineRoof machine = roof.machine();
  for (const double speed : {machine.read_gb_s, machine.bf16_tflop_s}) {
    EXPECT_TRUE(std::isfinite(speed));
    EXPECT_GT(speed, 0);
  }
  for (const size_t bytes : {size_t{1}, size_t{1} << 20}) {
    const auto speed = roof.read_gb_s(bytes);
    EXPECT_TRUE(speed && std::isfinite(*speed) && *speed > 0) << bytes;
  }
  EXPECT_GT(roof.memory_gb_s(), 0);
  EXPECT_GT(roof.free_bytes(), 0u);
  return machine.device;
}

TEST(Roof, CpuIsMeasured) {
  ThreadPool pool(2);
  const auto roof = make_roof(EngineOptions(), pool);
  ASSERT_TRUE(roof) << roof.error().message;
  EXPECT_EQ(measured(**roof), "");
}

TEST(Roof, DeviceIsMeasuredOrItsAbsenceIsTold) {
  ThreadPool pool(2);
  EngineOptions options;
  options.device = "cuda";
  const auto roof = make_roof(options, pool);
  if (!roof) {
    EXPECT_EQ(roof.error().code, ErrorCode::kDeviceUnavailable);
    EXPECT_NE(roof.error().message.find("--device cpu"), std::string::npos) << roof.error().message;
    return;
  }
  EXPECT_NE(measured(**roof), "");
}

}  // namespace
}  // namespace reprise
