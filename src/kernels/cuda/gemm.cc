#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/try.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/elementwise.h"

namespace reprise::kernels::cuda {
namespace {

constexpr size_t kLibraryWorkspace = size_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr size_t kAlignment = 256;
constexpr size_t kMaxPlans = 4096;
constexpr size_t kSliceRows = 128;  // slices of whole tiles keep pointers aligned
// Two waves of an H200's tiles of 256 x 128: products of more values are no faster together.
constexpr size_t kPairedValues = size_t{2} * 132 * 256 * 128;

// Everything that the choice of an algorithm depends on.
struct Shape {
  size_t products = 1;
  size_t n = 0, k = 0, rows = 0, weight_stride = 0, out_stride = 0;
  GemmOut type = GemmOut::kF32;
  bool bias = false, accumulate = false;
  uint32_t weight_alignment = 0, x_alignment = 0, out_alignment = 0;  // bytes

  friend auto operator<=>(const Shape&, const Shape&) = default;
};

using Desc = CublasLtObject<cublasLtMatmulDesc_t>;
using Layout = CublasLtObject<cublasLtMatrixLayout_t>;
using Preference = CublasLtObject<cublasLtMatmulPreference_t>;

// cuBLASLt is column-major: out^T [n, rows] = W [n, k] times x^T [k, rows].
struct Plan {
  Desc desc;
  Layout weight, x, out;
  cublasLtMatmulAlgo_t algorithm = {};
};

// Elements from the first of two products' matrices to the second one.
struct Apart {
  int64_t weight = 0, out = 0;
};

// The largest power of two up to kAlignment that divides it.
uint32_t alignment(const void* pointer) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(pointer) | kAlignment;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

cudaDataType data_type(GemmOut type) { return type == GemmOut::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

size_t element_bytes(GemmOut type) {
  return type == GemmOut::kF32 ? sizeof(float) : sizeof(__nv_bfloat16);
}

// Of as many matrices as products; set_apart() says where they lie.
Result<Layout> make_layout(const CublasLt& lt, cudaDataType type, size_t rows, size_t cols,
                           size_t stride, size_t products) {
  cublasLtMatrixLayout_t made = nullptr;
  REPRISE_CHECK(lt.check(lt.layout_create(&made, type, rows, cols, static_cast<int64_t>(stride)),
                         "a layout"));
  Layout layout(made, lt.layout_destroy);
  const auto count = static_cast<int32_t>(products);
  REPRISE_CHECK(lt.check(
      lt.layout_set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count), "a layout"));
  return layout;
}

// elements: from a matrix to the next one.
Status set_apart(const CublasLt& lt, const Layout& layout, int64_t elements) {
  return lt.check(lt.layout_set(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                &elements, sizeof elements),
                  "a layout");
}

Result<Desc> make_desc(const CublasLt& lt, const Shape& shape) {
  cublasLtMatmulDesc_t made = nullptr;
  REPRISE_CHECK(
      lt.check(lt.desc_create(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product's description"));
  Desc desc(made, lt.desc_destroy);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    return lt.check(lt.desc_set(desc.get(), attribute, &value, sizeof value), "an attribute");
  };
  REPRISE_CHECK(set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  if (shape.bias) {
    REPRISE_CHECK(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    REPRISE_CHECK(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{data_type(shape.type)}));
  }
  return desc;
}

Result<Plan> make_plan(const CublasLt& lt, cublasLtHandle_t handle, const Shape& shape,
                       const Apart& apart, size_t workspace_bytes) {
  REPRISE_TRY(Desc desc, make_desc(lt, shape));
  REPRISE_TRY(Layout weight,
              make_layout(lt, CUDA_R_16BF, shape.k, shape.n, shape.weight_stride, shape.products));
  REPRISE_TRY(Layout x, make_layout(lt, CUDA_R_16BF, shape.k, shape.rows, shape.k, shape.products));
  REPRISE_TRY(Layout out, make_layout(lt, data_type(shape.type), shape.n, shape.rows,
                                      shape.out_stride, shape.products));
  REPRISE_CHECK(set_apart(lt, weight, apart.weight));
  REPRISE_CHECK(set_apart(lt, out, apart.out));
  Plan plan{std::move(desc), std::move(weight), std::move(x), std::move(out)};

  cublasLtMatmulPreference_t made = nullptr;
  REPRISE_CHECK(lt.check(lt.preference_create(&made), "a preference"));
  const Preference preference(made, lt.preference_destroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return lt.check(lt.preference_set(preference.get(), attribute, &value, sizeof value),
                    "a preference");
  };
  REPRISE_CHECK(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes}));
  // Sums of parts of k stay in f32 until they are whole.
  constexpr uint32_t kReductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  REPRISE_CHECK(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions));
  REPRISE_CHECK(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.weight_alignment));
  REPRISE_CHECK(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.x_alignment));
  REPRISE_CHECK(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.out_alignment));
  REPRISE_CHECK(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.out_alignment));

  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  const cublasStatus_t status =
      lt.get_heuristic(handle, plan.desc.get(), plan.weight.get(), plan.x.get(), plan.out.get(),
                       plan.out.get(), preference.get(), 1, &result, &found);
  REPRISE_CHECK(
      lt.check(found == 0 && status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status,
               "the choice of an algorithm by cuBLASLt"));
  plan.algorithm = result.algo;
  return plan;
}

tl::unexpected<Error> no_room(const DeviceMatrix& weight, size_t workspace_bytes) {
  return fail(ErrorCode::kOutOfMemory,
              "a workspace of {} bytes is too small for weights of {} rows and {} columns",
              workspace_bytes, weight.rows(), weight.cols());
}

// Whether it may be multiplied at once with another such one.
bool may_pair(const GemmArgs& args) {
  return args.weight->type() == TensorType::kBF16 && args.bias == nullptr && args.rows > 0 &&
         args.weight->rows() * args.rows <= kPairedValues;
}

// From one to the other, if both products have one shape and elements lie apart by multiples of
// what they are aligned to.
std::optional<Apart> apart_of(const GemmArgs& one, const GemmArgs& other) {
  const auto same = [](const GemmArgs& a) {
    return std::tuple(a.weight->rows(), a.weight->cols(), a.weight->row_stride(), a.x, a.rows,
                      a.type, a.out_stride, a.accumulate);
  };
  if (!may_pair(one) || !may_pair(other) || same(one) != same(other)) return std::nullopt;
  const auto bytes = [](const void* from, const void* to) {
    return reinterpret_cast<intptr_t>(to) - reinterpret_cast<intptr_t>(from);
  };
  const intptr_t weights = bytes(one.weight->weights().codes, other.weight->weights().codes);
  const intptr_t outs = bytes(one.out, other.out);
  constexpr auto kUnit = static_cast<intptr_t>(kAlignment);
  if (weights <= 0 || outs <= 0 || weights % kUnit != 0 || outs % kUnit != 0) return std::nullopt;
  return Apart{weights / static_cast<intptr_t>(sizeof(__nv_bfloat16)),
               outs / static_cast<intptr_t>(element_bytes(one.type))};
}

// Rows of the weight in bf16.
struct WeightRows {
  const void* data = nullptr;  // [count, stride]
  size_t stride = 0, first = 0, count = 0;
};

}  // namespace

struct Gemm::Impl {
  explicit Impl(CublasLt library) : lt(std::move(library)), handle(nullptr, lt.destroy) {}

  size_t library_bytes() const {
    return std::min(kLibraryWorkspace, workspace.size() / 2 / kAlignment * kAlignment);
  }
  Result<Plan*> plan_of(const Shape& shape, const Apart& apart);
  /// apart: of the other product that is like it, or null.
  Status multiply_rows(const GemmArgs& args, const void* bias, const WeightRows& rows,
                       const Apart* apart, cudaStream_t stream);
  Status multiply_slices(const GemmArgs& args, const void* bias, std::byte* room, size_t room_bytes,
                         cudaStream_t stream);

  CublasLt lt;
  CublasLtObject<cublasLtHandle_t> handle;
  DeviceBuffer<std::byte> workspace;  // of the library, then bias and weights in bf16
  std::map<Shape, Plan> plans;
};

Result<Plan*> Gemm::Impl::plan_of(const Shape& shape, const Apart& apart) {
  if (const auto found = plans.find(shape); found != plans.end()) {
    Plan& plan = found->second;
    if (shape.products > 1) {
      REPRISE_CHECK(set_apart(lt, plan.weight, apart.weight));
      REPRISE_CHECK(set_apart(lt, plan.out, apart.out));
    }
    return &plan;
  }
  REPRISE_TRY(Plan plan, make_plan(lt, handle.get(), shape, apart, library_bytes()));
  if (plans.size() >= kMaxPlans) plans.clear();
  return &plans.emplace(shape, std::move(plan)).first->second;
}

// The columns of out that these rows of the weight give. bias: of the output's type.
Status Gemm::Impl::multiply_rows(const GemmArgs& args, const void* bias, const WeightRows& rows,
                                 const Apart* apart, cudaStream_t stream) {
  const size_t offset = rows.first * element_bytes(args.type);
  void* out = static_cast<std::byte*>(args.out) + offset;
  const Shape shape{.products = apart != nullptr ? size_t{2} : 1,
                    .n = rows.count,
                    .k = args.weight->cols(),
                    .rows = args.rows,
                    .weight_stride = rows.stride,
                    .out_stride = args.out_stride,
                    .type = args.type,
                    .bias = bias != nullptr,
                    .accumulate = args.accumulate,
                    .weight_alignment = alignment(rows.data),
                    .x_alignment = alignment(args.x),
                    .out_alignment = alignment(out)};
  REPRISE_TRY(Plan * plan, plan_of(shape, apart != nullptr ? *apart : Apart()));
  if (shape.bias) {
    const void* from = static_cast<const std::byte*>(bias) + offset;
    REPRISE_CHECK(lt.check(
        lt.desc_set(plan->desc.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &from, sizeof from),
        "an attribute"));
  }
  const float one = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  return lt.check(
      lt.matmul(handle.get(), plan->desc.get(), &one, rows.data, plan->weight.get(), args.x,
                plan->x.get(), &beta, out, plan->out.get(), out, plan->out.get(), &plan->algorithm,
                workspace.data(), library_bytes(), stream),
      "a product of cuBLASLt");
}

// Expands as many rows of the weight at a time as there is room for.
Status Gemm::Impl::multiply_slices(const GemmArgs& args, const void* bias, std::byte* room,
                                   size_t room_bytes, cudaStream_t stream) {
  const DeviceMatrix& weight = *args.weight;
  size_t slice = room_bytes / (weight.cols() * sizeof(__nv_bfloat16));
  if (slice > kSliceRows) slice -= slice % kSliceRows;
  if (slice == 0) return no_room(weight, workspace.size());
  auto* expanded = reinterpret_cast<__nv_bfloat16*>(room);
  for (size_t first = 0; first < weight.rows(); first += slice) {
    const size_t count = std::min(slice, weight.rows() - first);
    REPRISE_CUDA(dequantize(weight, first, count, expanded, stream), "expanding weights");
    const WeightRows rows{expanded, weight.cols(), first, count};
    REPRISE_CHECK(multiply_rows(args, bias, rows, nullptr, stream));
  }
  return {};
}

Gemm::Gemm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gemm::~Gemm() = default;

Result<std::unique_ptr<Gemm>> Gemm::create(size_t workspace_bytes) {
  REPRISE_TRY(CublasLt lt, CublasLt::load());
  auto impl = std::make_unique<Impl>(std::move(lt));
  REPRISE_CHECK(impl->workspace.reserve(workspace_bytes, "the workspace of matrix products"));
  cublasLtHandle_t handle = nullptr;
  REPRISE_CHECK(impl->lt.check(impl->lt.create(&handle), "starting cuBLASLt"));
  impl->handle.reset(handle);
  return std::unique_ptr<Gemm>(new Gemm(std::move(impl)));
}

Status Gemm::multiply(const GemmArgs& args, cudaStream_t stream) {
  const DeviceMatrix& weight = *args.weight;
  if (args.accumulate && args.type != GemmOut::kF32) {
    return fail(ErrorCode::kInvalidArgument, "a product can be added to f32 rows only");
  }
  if (args.rows == 0) return {};
  std::byte* room = impl_->workspace.data() + impl_->library_bytes();
  size_t room_bytes = impl_->workspace.size() - impl_->library_bytes();
  const void* bias = args.bias;
  if (bias != nullptr && args.type == GemmOut::kBF16) {
    const size_t bias_bytes =
        (weight.rows() * sizeof(__nv_bfloat16) + kAlignment - 1) / kAlignment * kAlignment;
    if (bias_bytes > room_bytes) return no_room(weight, impl_->workspace.size());
    auto* rounded = reinterpret_cast<__nv_bfloat16*>(room);
    REPRISE_CUDA(round_to_bf16(args.bias, weight.rows(), rounded, stream), "rounding a bias");
    bias = rounded;
    room += bias_bytes;
    room_bytes -= bias_bytes;
  }
  if (weight.type() != TensorType::kBF16) {
    return impl_->multiply_slices(args, bias, room, room_bytes, stream);
  }
  const WeightRows rows{weight.weights().codes, weight.row_stride(), 0, weight.rows()};
  return impl_->multiply_rows(args, bias, rows, nullptr, stream);
}

Status Gemm::multiply(std::span<const GemmArgs> products, cudaStream_t stream) {
  for (; !products.empty(); products = products.subspan(1)) {
    const GemmArgs& first = products.front();
    std::optional<Apart> apart;
    if (products.size() > 1) apart = apart_of(first, products[1]);
    if (!apart) {
      REPRISE_CHECK(multiply(first, stream));
      continue;
    }
    const DeviceMatrix& weight = *first.weight;
    const WeightRows rows{weight.weights().codes, weight.row_stride(), 0, weight.rows()};
    REPRISE_CHECK(impl_->multiply_rows(first, nullptr, rows, &*apart, stream));
    products = products.subspan(1);
  }
  return {};
}

}  // namespace reprise::kernels::cuda
