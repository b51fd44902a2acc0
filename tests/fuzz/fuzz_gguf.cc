// GGUF: metadata, tensor directory and tokenizer.
#include <cstdint>

#include "formats/gguf.h"
#include "formats/tokenizer_data.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto file = reprise::GgufFile::parse(bytes, "fuzz");
  if (!file) return 0;
  volatile uint8_t sum = 0;  // reads every byte that the parser says is a tensor's
  for (const auto& view : file->tensors()) {
    for (const std::byte byte : view.bytes) sum = sum + std::to_integer<uint8_t>(byte);
  }
  (void)reprise::read_gguf_tokenizer(*file);
  return 0;
}
