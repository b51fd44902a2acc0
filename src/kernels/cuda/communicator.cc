#include "kernels/cuda/communicator.h"

#include <numeric>
#include <utility>

#include "base/try.h"

namespace reprise::kernels::cuda {

Result<std::vector<std::unique_ptr<Communicator>>> Communicator::create(uint32_t count) {
  REPRISE_TRY(Nccl loaded, Nccl::load());
  const auto nccl = std::make_shared<const Nccl>(std::move(loaded));
  std::vector<int> devices(count);
  std::iota(devices.begin(), devices.end(), 0);
  std::vector<Nccl::Comm> comms(count);
  REPRISE_CHECK(
      nccl->check(nccl->comm_init_all(comms.data(), static_cast<int>(count), devices.data()),
                  "connecting the CUDA devices"));
  std::vector<std::unique_ptr<Communicator>> made;
  for (uint32_t rank = 0; rank < count; ++rank) {
    made.emplace_back(new Communicator(nccl, comms[rank], rank, count));
  }
  return made;
}

Status Communicator::sum(float* data, size_t size, cudaStream_t stream) const {
  return nccl_->check(
      nccl_->all_reduce(data, data, size, Nccl::kFloat32, Nccl::kSum, comm_, stream),
      "a sum over the CUDA devices");
}

Status Communicator::gather(float* data, size_t size, cudaStream_t stream) const {
  return nccl_->check(
      nccl_->all_gather(data + rank_ * size, data, size, Nccl::kFloat32, comm_, stream),
      "a gather from the CUDA devices");
}

void Communicator::destroy(Nccl::Result (*how)(Nccl::Comm)) {
  if (comm_ != nullptr) how(std::exchange(comm_, nullptr));
}

}  // namespace reprise::kernels::cuda
