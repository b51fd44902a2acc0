// The roof of a CUDA device.
#pragma once

#include <memory>

#include "bench/roof.h"

namespace reprise {

/// Measures device 0; about a second. Errors: as make_roof.
Result<std::unique_ptr<Roof>> device_roof();

}  // namespace reprise
