#include "model/model.h"

#include <algorithm>
#include <map>

#include "base/try.h"
#include "model/fingerprint.h"
#include "model/model_impl.h"

namespace reprise {
namespace {

std::vector<RopeTable> make_ropes(const ModelConfig& config, uint32_t context) {
  // In the order of LayerRope; the last has no pairs.
  return {RopeTable(config.rope, context), RopeTable(config.local_rope, context),
          RopeTable(RopeConfig(), context)};
}

std::string main_type(const TensorSource& source) {
  std::map<TensorType, uint64_t> bytes;
  for (const TensorView& tensor : source.tensors()) bytes[tensor.type] += tensor.bytes.size();
  const auto most = std::max_element(
      bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? "" : std::string(tensor_type_info(most->first).name);
}

}  // namespace

Model::Model() = default;
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::load(const std::string& path, ThreadPool& pool,
                                           uint32_t context, const ProgressFn& progress,
                                           bool expand) {
  REPRISE_TRY(const TensorSource source, TensorSource::open(path));
  std::unique_ptr<Model> model(new Model());
  REPRISE_TRY(model->config_, source.config());
  const uint32_t used = context != 0 ? context : model->config_.context;
  settle_ropes(model->config_, used);
  model->ropes_ = make_ropes(model->config_, used);
  model->quantization_ = main_type(source);
  REPRISE_TRY(ModelWeights weights, load_weights(source, model->config_, expand, pool, progress));
  model->fingerprint_ = reprise::fingerprint(model->config_, model->ropes_, source, pool);
  model->weight_bytes_ = weights.step_bytes();
  model->weights_ = std::make_unique<Weights>(Weights{std::move(weights)});
  model->buffers_ = std::make_unique<Buffers>();
  model->pool_ = &pool;
  return model;
}

const RopeTable& Model::rope(uint32_t layer) const {
  return ropes_[static_cast<size_t>(config_.layer_rope[layer])];
}

size_t Model::weight_bytes() const { return weight_bytes_; }

const ModelWeights& Model::weights() const { return *weights_; }

void Model::release_weights() { *weights_ = {}; }

}  // namespace reprise
