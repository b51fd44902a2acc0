#include "model/cuda/device_model.h"

#include <algorithm>
#include <initializer_list>

#include "base/try.h"
#include "model/cuda/device_buffers.h"
#include "model/weights.h"

namespace reprise {
namespace {

using kernels::cuda::Communicator;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::DeviceMatrix;
using kernels::cuda::UploadRoom;

constexpr size_t kGemmWorkspace = size_t{256} << 20;

Status upload_floats(std::span<const float> values, DeviceBuffer<float>& buffer) {
  return kernels::cuda::upload(values, buffer, "weights");
}

}  // namespace

DeviceModel::DeviceModel(const ModelConfig& config, const Communicator* communicator)
    : communicator_(communicator),
      shard_(communicator == nullptr ? Shard{}
                                     : Shard{communicator->rank(), communicator->count()}),
      config_(shard_config(config, shard_.count)),
      buffers_(std::make_unique<Buffers>()) {}
DeviceModel::~DeviceModel() = default;

Result<std::unique_ptr<DeviceModel>> DeviceModel::create(const Model& model,
                                                         const Communicator* communicator,
                                                         ThreadPool& pool, const Limits& limits,
                                                         const ProgressFn& progress) {
  std::unique_ptr<DeviceModel> made(new DeviceModel(model.config(), communicator));
  int device = 0, major = 0;
  REPRISE_CUDA(cudaGetDevice(&device), "asking for the device");
  REPRISE_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "asking for the device");
  if (major == 9) {  // where kernels/cuda/matvec.h runs
    const bool expanded = model.weights().layers[0].down.weight.type() == TensorType::kBF16;
    made->narrow_rows_ = expanded ? kBf16NarrowRows : kMaxNarrowRows;
  }
  if (limits.in_float) {
    if (major != 9) {
      return fail(ErrorCode::kUnsupported,
                  "--precision f32 needs a GPU of compute capability 9.0, this one has {}; use "
                  "--device cpu",
                  major);
    }
    made->in_float_ = true;
    made->narrow_rows_ = limits.rows;
  }
  REPRISE_TRY(made->gemm_, kernels::cuda::Gemm::create(kGemmWorkspace));
  REPRISE_CHECK(made->upload(model.weights(), pool, progress));
  if (made->narrow_rows_ > 0 && !made->has_short_rows()) {
    if (limits.in_float) {
      return fail(ErrorCode::kUnsupported,
                  "--precision f32 on a GPU takes matrices of up to about 32000 columns, this "
                  "model has some of {}; use --device cpu",
                  std::max(made->config_.ffn, made->config_.hidden));
    }
    made->narrow_rows_ = 0;
  }
  REPRISE_CHECK(made->buffers_->reserve(made->config_, made->shard_, limits));
  return made;
}

bool DeviceModel::has_short_rows() const {
  const auto fit = [](std::initializer_list<const Linear*> linears) {
    kernels::cuda::MatvecArgs args;
    args.count = 0;
    for (const Linear* linear : linears) args.projections[args.count++].weight = &linear->weight;
    return kernels::cuda::fits_matvec(args);
  };
  return fit({&head()}) && std::all_of(layers_.begin(), layers_.end(), [&](const Layer& layer) {
           return fit({&layer.q, &layer.k, &layer.v}) && fit({&layer.o}) &&
                  fit({&layer.gate, &layer.up}) && fit({&layer.down});
         });
}

// A row's logits alone are gathered where they belong, in equal parts.
size_t DeviceModel::logits_room(uint32_t results) const {
  const size_t part = shard_range(config_.vocab, {0, shard_.count}).count;
  return std::max(size_t{results} * config_.vocab, part * shard_.count);
}

Status DeviceModel::upload(const reprise::Linear& from, Cut cut, ThreadPool& pool, UploadRoom& room,
                           Linear& to) {
  const kernels::PackedMatrix& matrix = from.weight;
  const Shard whole;
  const ShardRange rows = shard_range(matrix.rows(), cut == Cut::kRows ? shard_ : whole);
  const ShardRange columns = shard_range(matrix.cols(), cut == Cut::kColumns ? shard_ : whole);
  const kernels::cuda::MatrixPart part = {rows.first, rows.count, columns.first, columns.count};
  REPRISE_CUDA(DeviceMatrix::upload(matrix, part, pool, room, &to.weight), "weights");
  if (from.bias.empty() || (cut == Cut::kColumns && shard_.rank > 0)) return {};  // added once
  return upload_floats(std::span(from.bias).subspan(rows.first, rows.count), to.bias);
}

Status DeviceModel::upload(const ModelWeights& weights, ThreadPool& pool,
                           const ProgressFn& progress) {
  UploadRoom room;
  REPRISE_CHECK(upload(weights.embedding, Cut::kNone, pool, room, embedding_));
  if (shard_.count > 1 || weights.lm_head.weight.rows() > 0) {
    REPRISE_CHECK(upload(weights.head(), Cut::kRows, pool, room, lm_head_));
  }
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
          std::pair{&from.gate, &to.gate}, std::pair{&from.up, &to.up}}) {
      REPRISE_CHECK(upload(*source, Cut::kRows, pool, room, *target));
    }
    REPRISE_CHECK(upload(from.o, Cut::kColumns, pool, room, to.o));
    REPRISE_CHECK(upload(from.down, Cut::kColumns, pool, room, to.down));
    const uint64_t done = shard_.rank * layers_.size() + i + 1;
    if (progress && !progress({"upload", done, shard_.count * layers_.size(), "layers"})) {
      return fail(ErrorCode::kCancelled, "loading the model was stopped");
    }
  }
  return {};
}

}  // namespace reprise
