// safetensors: header and placement of tensors.
#include <cstdint>

#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto tensors = reprise::parse_safetensors(bytes, "fuzz");
  if (!tensors) return 0;
  volatile uint8_t sum = 0;  // reads every byte that the parser says is a tensor's
  for (const auto& view : *tensors) {
    for (const std::byte byte : view.bytes) sum = sum + std::to_integer<uint8_t>(byte);
  }
  return 0;
}
