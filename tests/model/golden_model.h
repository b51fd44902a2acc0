// Tiny models of tests/fixtures/models: their weights come from a formula that
// tests/oracle/make_model_goldens.py shares.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/safetensors_builder.h"
#include "model/model.h"

namespace reprise::test {

struct GoldenTensor {
  std::string name;
  std::vector<uint64_t> shape;
  float offset, scale;
};

struct Golden {
  nlohmann::json config;
  std::vector<GoldenTensor> tensors;
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;  // [tokens, vocab]

  GoldenTensor& tensor(const std::string& name);
};

std::string fixture(const std::string& file);
nlohmann::json read_json(const std::string& path);
Golden read_golden(const std::string& name);

/// F32 safetensors folder of a golden, with more files by name; kept as long as the object.
class GoldenFolder {
 public:
  explicit GoldenFolder(const Golden& golden, const std::map<std::string, std::string>& more = {});
  const std::string& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

/// Logits [rows, vocab] of all tokens read in chunks; decode_rows of each chunk as decode rows.
std::vector<float> run_tokens(Model& model, const std::vector<int32_t>& tokens, size_t chunk,
                              size_t decode_rows);

/// |a - b| / |b| over one row, Euclidean.
double relative_distance(const float* a, const float* b, size_t n);

}  // namespace reprise::test
