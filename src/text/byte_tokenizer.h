// A tokenizer for models that come without one.
#pragma once

#include <cstddef>

#include "formats/tokenizer_data.h"

namespace reprise {

/// One token for every byte, which is its id; from 256 on, tokens that no text becomes and that
/// stand for their own names. vocab: at least 256.
TokenizerData byte_tokenizer(size_t vocab);

}  // namespace reprise
