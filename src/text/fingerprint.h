// Identity of a tokenizer.
#pragma once

#include <cstdint>

#include "formats/tokenizer_data.h"

namespace reprise {

/// Hash of everything in data that decides the ids of a text; the same on every machine.
uint64_t tokenizer_fingerprint(const TokenizerData& data);

}  // namespace reprise
