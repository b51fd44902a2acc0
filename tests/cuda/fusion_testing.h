// What tests of stored chunks on CUDA devices share.
#pragma once

#include <fstream>
#include <string>

#include "cuda/engine_testing.h"
#include "engine/library_testing.h"

namespace reprise::test {

inline constexpr uint32_t kStoredLayers = 5;

inline EngineOptions stored_options(const std::string& kv_type = "bf16",
                                    const std::string& scaling = "") {
  EngineOptions options = cuda_options();
  options.model = tiny_model({64, kStoredLayers, scaling});
  options.kv_type = kv_type;
  return options;
}

/// Breaks the last block of the only segment.
inline void damage_last_block(const Books& books) {
  std::fstream file(books.folder + "/seg-00000001.kv",
                    std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-5000, std::ios::end).put('\x55').put('\x55').put('\x55');
}

}  // namespace reprise::test
