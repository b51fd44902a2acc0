#include "kernels/cuda/communicator.h"

#include <gtest/gtest.h>

#include "cuda/device_testing.h"
#include "engine/cuda/rank_threads.h"
#include "engine/cuda/step_graph.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_buffer.h"

namespace reprise {
namespace {

using kernels::cuda::Communicator;
using kernels::cuda::CudaStream;
using kernels::cuda::DeviceBuffer;

constexpr size_t kSize = 1000;

/// A device, its data and its end.
struct Rank {
  CudaStream stream;
  DeviceBuffer<float> data;
  std::unique_ptr<Communicator> communicator;
};

class Exchange : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) {
      GTEST_SKIP() << devices << " CUDA devices, not 2";
    }
    auto communicators = Communicator::create(2);
    ASSERT_TRUE(communicators) << communicators.error().message;
    for (int device = 1; device >= 0; --device) {
      cudaSetDevice(device);
      Rank& rank = ranks_[device];
      rank.stream = std::move(*CudaStream::create());
      ASSERT_TRUE(rank.data.reserve(2 * kSize, "data"));
      rank.communicator = std::move((*communicators)[static_cast<size_t>(device)]);
    }
  }

  /// data = what value(rank, i) says, body on every rank, and what data is then.
  std::vector<std::vector<float>> run(const std::function<float(uint32_t, size_t)>& value,
                                      const std::function<Status(Rank&)>& body) {
    std::vector<std::vector<float>> result;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      std::vector<float> values(2 * kSize);
      for (size_t i = 0; i < values.size(); ++i) values[i] = value(rank, i);
      cudaMemcpy(ranks_[rank].data.data(), values.data(), values.size() * sizeof(float),
                 cudaMemcpyHostToDevice);
      cudaDeviceSynchronize();
    }
    const Status status = threads_.run([&](uint32_t rank) { return body(ranks_[rank]); });
    EXPECT_TRUE(status) << status.error().message;
    for (Rank& rank : ranks_) {
      EXPECT_EQ(cudaStreamSynchronize(rank.stream.get()), cudaSuccess);
      auto& values = result.emplace_back(2 * kSize);
      cudaMemcpy(values.data(), rank.data.data(), values.size() * sizeof(float),
                 cudaMemcpyDeviceToHost);
    }
    return result;
  }

  Rank ranks_[2];
  RankThreads threads_{2};
};

TEST_F(Exchange, SumsAndGathers) {
  const auto value = [](uint32_t rank, size_t i) {
    return static_cast<float>(i) + 0.5f * static_cast<float>(rank);
  };
  for (const auto& values : run(value, [](Rank& rank) {
         return rank.communicator->sum(rank.data.data(), kSize, rank.stream.get());
       })) {
    for (size_t i = 0; i < kSize; ++i) {
      ASSERT_EQ(values[i], 2.0f * static_cast<float>(i) + 0.5f);
    }
  }
  for (const auto& values : run(value, [](Rank& rank) {
         return rank.communicator->gather(rank.data.data(), kSize, rank.stream.get());
       })) {
    for (uint32_t i = 0; i < 2 * kSize; ++i) ASSERT_EQ(values[i], value(i / kSize, i));
  }
}

TEST_F(Exchange, IsCapturedAndReplayed) {
  const auto ones = [](uint32_t, size_t) { return 1.0f; };
  StepGraph graphs[2];
  const auto values = run(ones, [&](Rank& rank) -> Status {
    auto graph = StepGraph::capture(rank.stream.get(), [&] {
      return rank.communicator->sum(rank.data.data(), kSize, rank.stream.get());
    });
    if (!graph) return tl::unexpected<Error>(graph.error());
    for (int i = 0; i < 3; ++i) {
      if (auto status = graph->launch(rank.stream.get()); !status) return status;
    }
    graphs[&rank - ranks_] = std::move(*graph);
    return {};
  });
  for (const auto& data : values) EXPECT_EQ(data[kSize - 1], 8.0f);
}

// What a failed rank leaves undone keeps nobody waiting.
TEST_F(Exchange, AbortEndsWhatNobodyAnswers) {
  const auto sum = [](Rank& rank) {
    return rank.communicator->sum(rank.data.data(), kSize, rank.stream.get());
  };
  run([](uint32_t, size_t) { return 1.0f; }, sum);  // connects
  auto graph = StepGraph::capture(ranks_[0].stream.get(), [&] { return sum(ranks_[0]); });
  ASSERT_TRUE(graph) << graph.error().message;
  ASSERT_TRUE(sum(ranks_[0]));
  ASSERT_TRUE(graph->launch(ranks_[0].stream.get()));
  EXPECT_EQ(cudaStreamQuery(ranks_[0].stream.get()), cudaErrorNotReady);
  *graph = StepGraph();
  for (Rank& rank : ranks_) rank.communicator->abort();
  EXPECT_EQ(cudaStreamSynchronize(ranks_[0].stream.get()), cudaSuccess);
}

}  // namespace
}  // namespace reprise
