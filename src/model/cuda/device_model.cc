#include "model/cuda/device_model.h"

#include "base/try.h"
#include "model/cuda/device_buffers.h"
#include "model/weights.h"

namespace reprise {
namespace {

using kernels::cuda::DeviceBuffer;

constexpr size_t kGemmWorkspace = size_t{256} << 20;

Status upload_floats(const std::vector<float>& values, DeviceBuffer<float>& buffer) {
  return kernels::cuda::upload(std::span<const float>(values), buffer, "weights");
}

}  // namespace

DeviceModel::DeviceModel(const ModelConfig& config)
    : config_(config), buffers_(std::make_unique<Buffers>()) {}
DeviceModel::~DeviceModel() = default;

Result<std::unique_ptr<DeviceModel>> DeviceModel::create(const Model& model, ThreadPool& pool,
                                                         uint32_t max_rows, uint32_t max_results,
                                                         const ProgressFn& progress) {
  std::unique_ptr<DeviceModel> made(new DeviceModel(model.config()));
  int device = 0, major = 0;
  REPRISE_CUDA(cudaGetDevice(&device), "asking for the device");
  REPRISE_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "asking for the device");
  if (major == 9) {  // where kernels/cuda/matvec.h runs
    const bool expanded = model.weights().layers[0].down.weight.type() == TensorType::kBF16;
    made->narrow_rows_ = expanded ? kBf16NarrowRows : kMaxNarrowRows;
  }
  REPRISE_TRY(made->gemm_, kernels::cuda::Gemm::create(kGemmWorkspace));
  REPRISE_CHECK(made->upload(model.weights(), pool, progress));
  REPRISE_CHECK(made->buffers_->reserve(model.config(), max_rows, max_results));
  return made;
}

Status DeviceModel::upload(const ModelWeights& weights, ThreadPool& pool,
                           const ProgressFn& progress) {
  const auto matrix = [&](const reprise::Linear& from, Linear& to) -> Status {
    REPRISE_CUDA(kernels::cuda::DeviceMatrix::upload(from.weight, pool, &to.weight), "weights");
    return upload_floats(from.bias, to.bias);
  };
  REPRISE_CHECK(matrix(weights.embedding, embedding_));
  if (weights.lm_head.weight.rows() > 0) REPRISE_CHECK(matrix(weights.lm_head, lm_head_));
  REPRISE_CHECK(upload_floats(weights.final_norm, final_norm_));
  layers_.resize(weights.layers.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    Layer& to = layers_[i];
    for (const auto& [source, target] :
         {std::pair{&from.attn_norm, &to.attn_norm}, std::pair{&from.q_norm, &to.q_norm},
          std::pair{&from.k_norm, &to.k_norm}, std::pair{&from.attn_post_norm, &to.attn_post_norm},
          std::pair{&from.mlp_norm, &to.mlp_norm},
          std::pair{&from.mlp_post_norm, &to.mlp_post_norm}}) {
      REPRISE_CHECK(upload_floats(*source, *target));
    }
    for (const auto& [source, target] :
         {std::pair{&from.q, &to.q}, std::pair{&from.k, &to.k}, std::pair{&from.v, &to.v},
          std::pair{&from.o, &to.o}, std::pair{&from.gate, &to.gate}, std::pair{&from.up, &to.up},
          std::pair{&from.down, &to.down}}) {
      REPRISE_CHECK(matrix(*source, *target));
    }
    if (progress && !progress({"upload", i + 1, layers_.size(), "layers"})) {
      return fail(ErrorCode::kCancelled, "loading the model was stopped");
    }
  }
  return {};
}

}  // namespace reprise
