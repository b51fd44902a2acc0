// Times matvec: copies of a matrix, more than the L2 cache holds, one after the other in a CUDA
// graph.
//
//     cmake --build build --target matvec_bench
//     build/matvec_bench [type, e.g. bf16 [shape, from 0]]
//
// Columns: microseconds and GB/s of weights for 1, 4 and 8 rows of x; "o": launches overlap. The
// last one is the roof: plain loads of the same codes, overlapped.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gpu/graph_timing.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/matvec.h"

using namespace reprise;
using namespace reprise::kernels;
using namespace reprise::kernels::cuda;

namespace {

constexpr size_t kAllBytes = size_t{600} << 20;

struct Shape {
  std::vector<uint32_t> rows;  // of matrices that share x
  uint32_t cols;
  bool norm = false, gated = false;
};

const std::vector<Shape> kShapes = {
    {{4096, 1024, 1024}, 4096, true},  // Llama-3.1-8B
    {{4096}, 4096},
    {{14336, 14336}, 4096, true},
    {{4096}, 14336, false, true},
    {{128256}, 4096, true},
    {{576, 192, 192}, 576, true},  // SmolLM2-135M
    {{576}, 576},
    {{1536, 1536}, 576, true},
    {{576}, 1536, false, true},
    {{49152}, 576, true},
};

// Codes are random; floats and scales are ordinary numbers.
DeviceImage random_image(TensorType type, uint32_t rows, uint32_t cols) {
  const DeviceFormat f = device_format(type);
  DeviceImage image{.type = type,
                    .rows = rows,
                    .cols = cols,
                    .tiles = (rows + kTileRows - 1) / kTileRows,
                    .chunks = (cols + f.chunk_columns() - 1) / f.chunk_columns()};
  const size_t units = size_t{image.tiles} * image.chunks;
  image.codes.resize(units * kUnitBytes);
  image.scales.resize(units * kTileRows * f.chunk_scale_bytes(), std::byte{0x22});
  if (f.super) image.factors.resize(image.tiles * (cols / 256) * kFactorBytes, std::byte{0x22});
  std::mt19937 random(1);
  for (size_t i = 0; i + 3 < image.codes.size(); i += 4) {
    const uint32_t bits = f.quantized() ? random() : (random() & 0x00ff00ff) | 0x3c003c00;
    std::memcpy(&image.codes[i], &bits, 4);
  }
  return image;
}

// Reads count pieces of 16 bytes.
__global__ __launch_bounds__(512) void read_kernel(const uint4* data, size_t count, uint32_t* out) {
  constexpr int kAhead = 8;
  allow_next_kernel();
  const size_t step = size_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += kAhead * step) {
    uint4 pieces[kAhead] = {};
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k * step < count) pieces[k] = __ldcs(data + i + k * step);
    }
#pragma unroll
    for (const uint4& v : pieces) sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  wait_for_kernels_before();
  if (sum == 1) *out = sum;  // keeps the loads
}

float* ones(size_t count) {
  const std::vector<float> host(count, 1.0f);
  void* data = nullptr;
  check(cudaMalloc(&data, count * sizeof(float)));
  check(cudaMemcpy(data, host.data(), count * sizeof(float), cudaMemcpyHostToDevice));
  return static_cast<float*>(data);
}

using Copies = std::vector<std::vector<DeviceMatrix>>;

double time_matvec(const Shape& shape, const Copies& copies, uint32_t batch, bool overlap) {
  size_t rows = 0;
  for (const uint32_t n : shape.rows) rows += n;
  float *x = ones(size_t{8} * shape.cols), *up = ones(size_t{8} * shape.cols), *y = ones(8 * rows);
  const double us = time_graph(copies.size(), 0, [&](size_t i, cudaStream_t stream) {
    MatvecArgs args;
    args.input.x = x;
    args.input.stride = shape.cols;
    args.input.norm_weight = shape.norm ? up : nullptr;
    args.input.norm_eps = 1e-5f;
    args.input.up = shape.gated ? up : nullptr;
    args.count = static_cast<uint32_t>(shape.rows.size());
    args.batch = batch;
    args.overlap = overlap;
    float* out = y;
    for (uint32_t k = 0; k < args.count; ++k) {
      args.projections[k] = {&copies[i][k], out, shape.rows[k]};
      out += size_t{8} * shape.rows[k];
    }
    check(matvec(args, stream));
  });
  for (float* data : {x, up, y}) cudaFree(data);
  return us;
}

// GB/s.
double time_reads(const Copies& copies, const std::vector<DeviceImage>& images) {
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  float* out = ones(1);
  size_t bytes = 0;
  for (const DeviceImage& image : images) bytes += image.codes.size();
  const double us = time_graph(copies.size(), 0, [&](size_t i, cudaStream_t stream) {
    for (size_t k = 0; k < images.size(); ++k) {
      cudaLaunchAttribute overlap = {};
      overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      overlap.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(static_cast<uint32_t>(multiprocessors));
      config.blockDim = dim3(512);
      config.stream = stream;
      config.attrs = &overlap;
      config.numAttrs = 1;
      const auto* data = reinterpret_cast<const uint4*>(copies[i][k].weights().codes);
      check(cudaLaunchKernelEx(&config, read_kernel, data, images[k].codes.size() / 16,
                               reinterpret_cast<uint32_t*>(out)));
    }
  });
  cudaFree(out);
  return static_cast<double>(bytes) / us / 1e3;
}

void measure(TensorType type, const Shape& shape) {
  std::vector<DeviceImage> images;
  size_t bytes = 0;
  std::string name;
  for (const uint32_t rows : shape.rows) {
    images.push_back(random_image(type, rows, shape.cols));
    const DeviceImage& image = images.back();
    bytes += image.codes.size() + image.scales.size() + image.factors.size();
    if (!name.empty()) name += '+';
    name += std::to_string(rows);
  }
  Copies copies(std::clamp<size_t>(kAllBytes / bytes, 3, 500));
  for (auto& copy : copies) {
    for (const DeviceImage& image : images) {
      check(DeviceMatrix::upload(image, &copy.emplace_back()));
    }
  }
  std::printf("%-5s %-15s %5u |", std::string(tensor_type_info(type).name).c_str(), name.c_str(),
              shape.cols);
  for (const bool overlap : {false, true}) {
    for (const uint32_t batch : {1, 4, 8}) {
      const double us = time_matvec(shape, copies, batch, overlap);
      std::printf(" %s%u %6.2f %5.0f |", overlap ? "o" : "", batch, us,
                  static_cast<double>(bytes) / us / 1e3);
    }
  }
  std::printf(" read %5.0f\n", time_reads(copies, images));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  using enum TensorType;
  for (const TensorType type : {kBF16, kQ8_0, kQ4_1, kQ4_0, kQ4_K, kQ6_K}) {
    if (argc > 1 && tensor_type_info(type).name != argv[1]) continue;
    for (size_t i = 0; i < kShapes.size(); ++i) {
      if (argc > 2 && std::to_string(i) != argv[2]) continue;
      if (kShapes[i].cols % tensor_type_info(type).block == 0) measure(type, kShapes[i]);
    }
  }
}
