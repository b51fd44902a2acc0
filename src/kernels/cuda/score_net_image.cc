// A network as tensor cores take it.
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/cuda/score_net.h"

namespace reprise::kernels::cuda {
namespace {

// f16 ends at 65504, and sums are in f32.
constexpr int kMostExponent = 14;

// What brings values below 2^kMostExponent.
float scale_for(double largest) {
  return largest > 0.0 ? std::ldexp(1.0f, kMostExponent - 1 - std::ilogb(largest)) : 1.0f;
}

float largest_of(std::span<const float> values) {
  float largest = 0.0f;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

uint32_t pair_of(float low, float high) {
  const __half_raw first = __half(low), second = __half(high);
  return first.x | uint32_t{second.x} << 16;
}

// Inputs 2 lane % 4 and the next one, of eight, to outputs lane / 4. weight(input, output).
template <typename Weight>
void fill(uint32_t (&lanes)[32][2], const Weight& weight) {
  for (size_t lane = 0; lane < 32; ++lane) {
    for (size_t half = 0; half < 2; ++half) {
      const size_t input = half * 8 + lane % 4 * 2, output = lane / 4;
      lanes[lane][half] = pair_of(weight(input, output), weight(input + 1, output));
    }
  }
}

// What taps make of activations without inputs.
void add_still(const ScoreNet& net, ScoreNetImage& image) {
  for (size_t i = 0; i < 8 * 4 * kNetOuter; ++i) {
    const size_t rows = i / kNetOuter / 4, missing = i / kNetOuter % 4, outer = i % kNetOuter;
    double sum = net.bias2[outer];
    for (size_t tap = 0; tap < 9; ++tap) {
      const bool has_column = tap % 3 == 1 || (missing >> (tap % 3 / 2) & 1) == 0;
      if ((rows >> (tap / 3) & 1) == 0 || !has_column) continue;
      for (size_t c = 0; c < kNetInner; ++c) {
        sum += static_cast<double>(net.conv2[(tap * kNetInner + c) * kNetOuter + outer]) *
               std::max(0.0f, net.bias1[c]);
      }
    }
    image.still[rows][missing][outer] = static_cast<float>(sum);
  }
}

}  // namespace

ScoreNetImage score_net_image(const ScoreNet& net) {
  ScoreNetImage image;
  const float scale1 = scale_for(largest_of(net.conv1));
  const float scale2 = scale_for(largest_of(net.conv2));
  double most = 0.0;  // that inputs below 2 change an activation
  for (size_t c = 0; c < kNetInner; ++c) {
    double sum = 0.0;
    for (size_t tap = 0; tap < 9; ++tap) sum += 2.0 * std::abs(net.conv1[tap * kNetInner + c]);
    most = std::max(most, sum);
    image.bias1[c] = net.bias1[c];
  }
  image.inner_scale = scale_for(most);
  image.unit1 = 1.0f / (scale1 * kNetInputScale);
  image.unit2 = 1.0f / (scale2 * image.inner_scale);
  for (size_t tile = 0; tile < kNetInner / 8; ++tile) {
    fill(image.conv1[tile], [&](size_t input, size_t output) {
      if (input >= 12 || input % 4 == 3) return 0.0f;
      const size_t tap = input / 4 * 3 + input % 4;
      return net.conv1[tap * kNetInner + tile * 8 + output] * scale1;
    });
  }
  for (size_t tap = 0; tap < 9; ++tap) {
    for (size_t tile = 0; tile < kNetOuter / 8; ++tile) {
      fill(image.conv2[tap][tile], [&](size_t input, size_t output) {
        return net.conv2[(tap * kNetInner + input) * kNetOuter + tile * 8 + output] * scale2;
      });
    }
  }
  add_still(net, image);
  std::copy(net.conv3.begin(), net.conv3.end(), image.conv3);
  image.bias3 = net.bias3;
  return image;
}

}  // namespace reprise::kernels::cuda
