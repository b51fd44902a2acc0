// config.json: a configuration that is read is one that tables and shapes can be made of.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "formats/json_text.h"
#include "model/config.h"
#include "model/rope.h"
#include "require.h"

namespace {

using namespace reprise;

void check_angles(const RopeConfig& rope, uint32_t context) {
  const RopeTable table(rope, context);
  std::vector<float> angles(table.pairs() * 2);
  for (const int32_t position : {0, 1, 1 << 20}) {
    table.cos_sin(position, angles.data());
    require(std::ranges::all_of(angles, [](float x) { return std::isfinite(x); }));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = parse_json(text, "fuzz", {});
  if (!json) return 0;
  auto config = read_hf_config(*json, "fuzz");
  if (!config) return 0;
  require(config->n_layer > 0 && config->hidden > 0 && config->vocab > 0 && config->head_dim > 0);
  require(config->n_kv_head > 0 && config->n_head % config->n_kv_head == 0);
  require(config->window.size() == config->n_layer);
  require(config->layer_rope.size() == config->n_layer);
  settle_ropes(*config, config->context);
  check_angles(config->rope, config->context);
  if (config->local_rope.dims > 0) check_angles(config->local_rope, config->context);
  return 0;
}
