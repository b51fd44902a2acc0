// tokenizer.model: the protobuf of SentencePiece.
#include <cstdint>

#include "formats/tokenizer_data.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)reprise::parse_sentencepiece(text, "fuzz");
  return 0;
}
