#include "model/fingerprint.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <memory>

namespace reprise {
namespace {

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

class Hash {
 public:
  Hash() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  void add(std::span<const std::byte> bytes) {
    XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  }
  void add(const std::string& text) { add(std::as_bytes(std::span(text))); }
  uint64_t digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, FreeState> state_;
};

// Everything of the configuration that changes keys and values.
std::string describe(const ModelConfig& c) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", c.architecture, c.n_layer,
                     c.hidden, c.n_head, c.n_kv_head, c.head_dim, c.ffn, c.vocab, c.norm_eps,
                     static_cast<int>(c.activation), c.embedding_scale, c.residual_scale,
                     c.attention_scale, c.attention_soft_cap, c.norm_plus_one,
                     fmt::join(c.window, ","));
}

}  // namespace

uint64_t fingerprint(const ModelConfig& config, std::span<const RopeTable> ropes,
                     const TensorSource& source, ThreadPool& pool) {
  Hash hash;
  hash.add(describe(config));
  for (const LayerRope rope : config.layer_rope) hash.add(std::as_bytes(std::span(&rope, 1)));
  for (const RopeTable& rope : ropes) {
    std::vector<float> angles(rope.pairs() * 2);
    rope.cos_sin(1, angles.data());
    hash.add(std::as_bytes(std::span(angles)));
  }
  const std::span<const TensorView> tensors = source.tensors();
  std::vector<uint64_t> contents(tensors.size());
  pool.run(tensors.size(), [&](size_t i, int) {
    contents[i] = XXH3_64bits(tensors[i].bytes.data(), tensors[i].bytes.size());
  });
  for (const TensorView& tensor : tensors) {
    hash.add(fmt::format("{} {} {}", tensor.name, tensor_type_info(tensor.type).name,
                         fmt::join(tensor.shape, ",")));
  }
  hash.add(std::as_bytes(std::span(contents)));
  return hash.digest();
}

}  // namespace reprise
