// The roof of CUDA devices.
#pragma once

#include <cstdint>
#include <memory>

#include "bench/roof.h"

namespace reprise {

/// Measures device 0 for the first count ones; about a second. Errors: as make_roof.
Result<std::unique_ptr<Roof>> device_roof(uint32_t count);

}  // namespace reprise
