#include "model/golden_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "model/reference_attention.h"

namespace reprise::test {
namespace {

// offset + scale * u, u uniform in [-1, 1): splitmix64 of FNV-1a of the name plus the index.
std::string weight_bytes(const GoldenTensor& tensor) {
  uint64_t seed = 0xcbf29ce484222325u, count = 1;
  for (const char c : tensor.name) seed = (seed ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  for (const uint64_t n : tensor.shape) count *= n;
  ByteWriter bytes;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t z = seed + i * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    bytes.f32(tensor.offset + tensor.scale * (static_cast<float>(z >> 40) * 0x1p-23f - 1.0f));
  }
  return bytes.bytes();
}

}  // namespace

GoldenTensor& Golden::tensor(const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const GoldenTensor& tensor) { return tensor.name == name; });
  if (found == tensors.end()) throw std::out_of_range(name);
  return *found;
}

std::string fixture(const std::string& file) {
  return std::string(REPRISE_FIXTURES) + "/models/" + file;
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

Golden read_golden(const std::string& name) {
  const nlohmann::json json = read_json(fixture(name + ".json"));
  Golden golden;
  golden.config = json["config"];
  for (const auto& tensor : json["tensors"]) {
    golden.tensors.push_back({tensor[0], tensor[1], tensor[2], tensor[3]});
  }
  golden.tokens = json["tokens"].get<std::vector<int32_t>>();
  golden.logits = json["logits"].get<std::vector<std::vector<float>>>();
  return golden;
}

GoldenFolder::GoldenFolder(const Golden& golden, const std::map<std::string, std::string>& more) {
  std::string header = "{", data;
  for (const GoldenTensor& tensor : golden.tensors) {
    const std::string bytes = weight_bytes(tensor);
    if (header.size() > 1) header += ",";
    header += safetensors_entry(tensor.name, "F32", nlohmann::json(tensor.shape).dump(),
                                data.size(), data.size() + bytes.size());
    data += bytes;
  }
  for (const auto& [name, text] : more) folder_.add(name, text);
  folder_.add("config.json", golden.config.dump());
  folder_.add("model.safetensors", safetensors(header + "}", data));
}

std::vector<float> run_tokens(Model& model, const std::vector<int32_t>& tokens, size_t chunk,
                              size_t decode_rows) {
  const size_t vocab = model.config().vocab;
  std::vector<float> logits(tokens.size() * vocab);
  ReferenceAttention attention(model);
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    std::vector<Row> rows;
    std::vector<uint32_t> wanted;
    for (size_t i = begin; i < std::min(tokens.size(), begin + chunk); ++i) {
      wanted.push_back(static_cast<uint32_t>(rows.size()));
      rows.push_back({0, static_cast<int32_t>(i), tokens[i]});
    }
    attention.begin(rows);
    const ForwardBatch batch{rows, std::min(decode_rows, rows.size()), wanted};
    const Status status = model.forward(batch, attention, &logits[begin * vocab]);
    EXPECT_TRUE(status) << status.error().message;
  }
  return logits;
}

double relative_distance(const float* a, const float* b, size_t n) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < n; ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace reprise::test
