#include "model/random_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "base/float16.h"
#include "base/nearest.h"
#include "base/try.h"
#include "formats/safetensors.h"
#include "model/public_configs.h"
#include "model/tensor_names.h"

namespace reprise {
namespace {

struct RandomType {
  std::string_view name;
  TensorType type;
};
constexpr std::array kTypes{RandomType{"bf16", TensorType::kBF16},
                            RandomType{"q8_0", TensorType::kQ8_0},
                            RandomType{"q4_0", TensorType::kQ4_0}};

// Of the type's blocks. Primes, so that rows of a matrix differ, and matrices too.
constexpr uint64_t kPeriod = 100'003, kSpare = 65'537, kStep = 7'919;

/// The entry of this name; kInvalidArgument names them all.
template <class Entry>
Result<const Entry*> find_entry(std::span<const Entry> entries, std::string_view name,
                                std::string_view what) {
  std::vector<std::string_view> known;
  for (const Entry& entry : entries) {
    if (entry.name == name) return &entry;
    known.push_back(entry.name);
  }
  return fail(ErrorCode::kInvalidArgument,
              "--model random:NAME:TYPE: \"{}\" is no known {}{}; these are: {}", name, what,
              suggestion(name, known), fmt::join(known, ", "));
}

/// Weights between -1/32 and 1/32, about what models have.
void write_block(TensorType type, std::mt19937& random, std::byte* block) {
  const auto byte = [&] { return static_cast<int>(random() >> 24); };
  if (type == TensorType::kBF16) {
    const Bf16 value = to_bf16(static_cast<float>(byte() - 128) * 0x1p-12f);
    std::memcpy(block, &value, sizeof value);
    return;
  }
  const F16 scale = to_f16(type == TensorType::kQ8_0 ? 0x1p-12f : 0x1p-8f);
  std::memcpy(block, &scale, sizeof scale);
  const uint32_t end = tensor_type_info(type).block_bytes;
  for (uint32_t i = sizeof scale; i < end; ++i) block[i] = static_cast<std::byte>(byte());
}

/// Repeats the bytes of a period.
void fill(TensorType type, std::span<std::byte> bytes) {
  const uint32_t block_bytes = tensor_type_info(type).block_bytes;
  size_t done = std::min<size_t>(kPeriod * block_bytes, bytes.size());
  std::mt19937 random(1);
  for (size_t at = 0; at < done; at += block_bytes) write_block(type, random, &bytes[at]);
  for (size_t count = 0; done < bytes.size(); done += count) {
    count = std::min(done, bytes.size() - done);
    std::memcpy(&bytes[done], bytes.data(), count);
  }
}

bool is_matrix(const TensorView& tensor) { return tensor.shape.size() == 2; }

uint64_t blocks(const TensorView& matrix) {
  return matrix.shape[0] * matrix.shape[1] / tensor_type_info(matrix.type).block;
}

class TensorList {
 public:
  explicit TensorList(const RandomSpec& spec)
      : config_(spec.config), names_(folder_names(spec.config)), type_(spec.type) {}

  std::vector<TensorView> take() {
    matrix(names_.embedding, config_.vocab, config_.hidden);
    for (uint32_t layer = 0; layer < config_.n_layer; ++layer) {
      prefix_ = fmt::format(fmt::runtime(names_.layer), layer);
      add_layer();
    }
    prefix_.clear();
    vector(names_.final_norm, config_.hidden);
    if (!config_.tied_embeddings) matrix(names_.lm_head, config_.vocab, config_.hidden);
    return std::move(tensors_);
  }

 private:
  void add_layer() {
    const uint64_t hidden = config_.hidden, q_rows = uint64_t{config_.n_head} * config_.head_dim;
    const uint64_t kv_rows = uint64_t{config_.n_kv_head} * config_.head_dim;
    vector(names_.attn_norm, hidden);
    matrix(names_.q, q_rows, hidden);
    matrix(names_.k, kv_rows, hidden);
    matrix(names_.v, kv_rows, hidden);
    if (config_.qkv_bias) {
      vector(names_.q, q_rows, ".bias");
      vector(names_.k, kv_rows, ".bias");
      vector(names_.v, kv_rows, ".bias");
    }
    if (config_.qk_norm) {
      vector(names_.q_norm, config_.head_dim);
      vector(names_.k_norm, config_.head_dim);
    }
    matrix(names_.o, hidden, q_rows);
    vector(names_.mlp_norm, hidden);
    matrix(names_.gate, config_.ffn, hidden);
    matrix(names_.up, config_.ffn, hidden);
    matrix(names_.down, hidden, config_.ffn);
  }
  void matrix(std::string_view name, uint64_t rows, uint64_t cols) {
    tensors_.push_back({fmt::format("{}{}.weight", prefix_, name), type_, {rows, cols}, {}});
  }
  void vector(std::string_view name, uint64_t size, std::string_view ending = ".weight") {
    tensors_.push_back(
        {fmt::format("{}{}{}", prefix_, name, ending), TensorType::kF32, {size}, {}});
  }

  const ModelConfig& config_;
  const TensorNames names_;
  TensorType type_;
  std::string prefix_;
  std::vector<TensorView> tensors_;
};

}  // namespace

Result<RandomSpec> parse_random_spec(std::string_view model) {
  const std::string_view name = model.substr(kRandomPrefix.size());
  const size_t colon = name.find(':');
  RandomSpec spec;
  REPRISE_TRY(const PublicConfig* found,
              find_entry(public_configs(), name.substr(0, colon), "configuration"));
  if (colon != std::string_view::npos) {
    REPRISE_TRY(const RandomType* type,
                find_entry(std::span<const RandomType>(kTypes), name.substr(colon + 1), "type"));
    spec.type = type->type;
  }
  REPRISE_TRY(const nlohmann::json json, parse_json(found->json, found->name));
  REPRISE_TRY(spec.config, read_hf_config(json, std::string(found->name)));
  spec.config.name = found->name;
  return spec;
}

std::vector<TensorView> random_tensors(const RandomSpec& spec) { return TensorList(spec).take(); }

Result<RandomModel> RandomModel::make(std::string_view model) {
  REPRISE_TRY(RandomSpec spec, parse_random_spec(model));
  RandomModel made;
  made.tensors_ = random_tensors(spec);
  uint64_t most_blocks = 0, longest = 0;
  for (const TensorView& tensor : made.tensors_) {
    if (is_matrix(tensor))
      most_blocks = std::max(most_blocks, blocks(tensor));
    else
      longest = std::max(longest, tensor.shape[0]);
  }
  const uint64_t block_bytes = tensor_type_info(spec.type).block_bytes;
  const size_t size = (most_blocks + kSpare) * block_bytes;
  made.block_ = std::make_unique_for_overwrite<std::byte[]>(size);
  const std::span<std::byte> bytes(made.block_.get(), size);
  fill(spec.type, bytes);
  made.ones_.assign(longest, 1.0f);
  uint64_t first = 0;
  for (TensorView& tensor : made.tensors_) {
    if (is_matrix(tensor)) {
      tensor.bytes = bytes.subspan(first * block_bytes, blocks(tensor) * block_bytes);
      first = (first + kStep) % kSpare;
    } else {
      tensor.bytes = std::as_bytes(std::span(made.ones_).first(tensor.shape[0]));
    }
  }
  made.config_ = std::move(spec.config);
  return made;
}

const TensorView* RandomModel::tensor(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &TensorView::name);
  return found == tensors_.end() ? nullptr : &*found;
}

}  // namespace reprise
