// tokenizer.json: vocabulary, merges and pipeline.
#include <cstdint>

#include "formats/tokenizer_data.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)reprise::parse_tokenizer_json(text, "fuzz");
  return 0;
}
