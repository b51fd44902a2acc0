#include "methods/attention_predictor/net_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/try.h"
#include "formats/safetensors.h"
#include "kv/page_pool.h"
#include "methods/policy_memory.h"

namespace reprise {
namespace {

using kernels::kNetInner, kernels::kNetOuter;

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr uint32_t kMaxRows = 1024;

/// Visits the tensors: name, shape, and where the value at an index in the file's order stands.
/// net: ForecastNet or const ForecastNet.
template <class Net, class Visitor>
void visit_tensors(Net& file, Visitor visit) {
  auto& net = file.net;
  using Shape = std::vector<uint64_t>;
  visit("conv1.weight", Shape{kNetInner, 1, 3, 3},
        [&](size_t i) { return &net.conv1[i % 9 * kNetInner + i / 9]; });
  visit("conv1.bias", Shape{kNetInner}, [&](size_t i) { return &net.bias1[i]; });
  visit("conv2.weight", Shape{kNetOuter, kNetInner, 3, 3}, [&](size_t i) {
    const size_t tap = i % 9, inner = i / 9 % kNetInner, outer = i / 9 / kNetInner;
    return &net.conv2[(tap * kNetInner + inner) * kNetOuter + outer];
  });
  visit("conv2.bias", Shape{kNetOuter}, [&](size_t i) { return &net.bias2[i]; });
  visit("conv3.weight", Shape{1, kNetOuter, 1}, [&](size_t i) { return &net.conv3[i]; });
  visit("conv3.bias", Shape{1}, [&](size_t) { return &net.bias3; });
}

size_t elements(const std::vector<uint64_t>& shape) {
  size_t count = 1;
  for (const uint64_t dim : shape) count *= dim;
  return count;
}

/// What a network is bound to: quantised copies of a model attend alike.
std::string identity(const ModelConfig& config) {
  return fmt::format("{} ({}, {} layers, {}/{} heads of {}, hidden {}, vocabulary {})", config.name,
                     config.architecture, config.n_layer, config.n_head, config.n_kv_head,
                     config.head_dim, config.hidden, config.vocab);
}

std::string_view pool_name(BlockPool pool) { return pool == BlockPool::kMax ? "max" : "sum"; }

/// The file's own JSON header, which parse_safetensors() has checked.
Result<nlohmann::json> metadata(std::string_view bytes, const std::string& path) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  REPRISE_TRY(nlohmann::json header, parse_json(bytes.substr(sizeof(length), length), path));
  return header.value("__metadata__", nlohmann::json::object());
}

Status check_metadata(const nlohmann::json& data, const std::string& path,
                      const ModelConfig& config, std::optional<BlockPool> pool, ForecastNet& net) {
  const auto text = [&](const char* key) {
    const auto it = data.find(key);
    return it != data.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  if (text("format") != "reprise forecast") {
    return fail(ErrorCode::kBadValue, "{}: no network of `reprise train predictor`", path);
  }
  if (text("model") != identity(config) && !PolicyMemory::is_part(config)) {
    return fail(ErrorCode::kUnsupported,
                "{}: trained for {}, not for {}; train one with `reprise train predictor`", path,
                text("model"), identity(config));
  }
  if (text("block") != fmt::format("{}", kPageTokens)) {
    return fail(ErrorCode::kUnsupported, "{}: trained for blocks of {} tokens, pages have {}", path,
                text("block"), kPageTokens);
  }
  net.pool = text("pool") == pool_name(BlockPool::kMax) ? BlockPool::kMax : BlockPool::kSum;
  const std::string_view wanted = pool_name(pool.value_or(net.pool));
  if (text("pool") != wanted) {
    return fail(ErrorCode::kUnsupported, "{}: trained for pool={}, not for pool={}", path,
                text("pool"), wanted);
  }
  const std::string rows = text("rows"), form = text("form");
  const auto [end, error] = std::from_chars(rows.data(), rows.data() + rows.size(), net.rows);
  const bool whole = error == std::errc() && end == rows.data() + rows.size();
  if (!whole || net.rows < 1 || net.rows > kMaxRows ||
      (form != "residual" && form != "published")) {
    return fail(ErrorCode::kBadValue, "{}: rows \"{}\" or form \"{}\" cannot be", path, rows, form);
  }
  net.published = form == "published";
  return {};
}

}  // namespace

std::string forecast_net_file(const ForecastNet& net, const ModelConfig& config,
                              const std::vector<std::pair<std::string, std::string>>& notes) {
  nlohmann::ordered_json header;
  auto& data = header["__metadata__"];
  data["format"] = "reprise forecast";
  data["model"] = identity(config);
  data["block"] = fmt::format("{}", kPageTokens);
  data["pool"] = pool_name(net.pool);
  data["rows"] = fmt::format("{}", net.rows);
  data["form"] = net.published ? "published" : "residual";
  for (const auto& [key, value] : notes) data[key] = value;
  std::string values;
  visit_tensors(net, [&](const char* name, const std::vector<uint64_t>& shape, auto at) {
    const size_t begin = values.size();
    for (size_t i = 0; i < elements(shape); ++i) {
      values.append(reinterpret_cast<const char*>(at(i)), sizeof(float));
    }
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, values.size()}}};
  });
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text + values;
}

Result<ForecastNet> load_forecast_net(const std::string& path, const ModelConfig& config,
                                      std::optional<BlockPool> pool) {
  REPRISE_TRY(const std::string bytes, read_text_file(path, kMaxFileBytes));
  REPRISE_TRY(const std::vector<TensorView> tensors,
              parse_safetensors(std::as_bytes(std::span(bytes)), path));
  REPRISE_TRY(const nlohmann::json data, metadata(bytes, path));
  ForecastNet net;
  REPRISE_CHECK(check_metadata(data, path, config, pool, net));
  Status status;
  visit_tensors(net, [&](const char* name, const std::vector<uint64_t>& shape, auto at) {
    if (!status) return;
    const auto tensor = std::ranges::find(tensors, name, &TensorView::name);
    if (tensor == tensors.end()) {
      status = fail(ErrorCode::kMissingTensor, "{}: no tensor {}", path, name);
      return;
    }
    if (tensor->type != TensorType::kF32 || tensor->shape != shape) {
      status =
          fail(ErrorCode::kBadShape, "{}: {} is no F32 tensor of the network's shape", path, name);
      return;
    }
    for (size_t i = 0; i < elements(shape); ++i) {
      std::memcpy(at(i), tensor->bytes.data() + i * sizeof(float), sizeof(float));
      if (!std::isfinite(*at(i))) {
        status = fail(ErrorCode::kBadValue, "{}: {} holds a number that is not finite", path, name);
        return;
      }
    }
  });
  if (!status) return tl::unexpected<Error>(status.error());
  return net;
}

}  // namespace reprise
