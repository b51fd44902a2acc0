// Pages copied within one range of addresses, whichever memory lies behind them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reprise::kernels::cuda {

/// Page to[i] = page from[i], of page_bytes each from base on; no page is both read and written.
/// Lists may lie in page-locked host memory. page_bytes: a multiple of 16, otherwise
/// cudaErrorInvalidValue. Takes a few multiprocessors only: the bus is the limit.
cudaError_t copy_pages(void* base, uint64_t page_bytes, const uint32_t* from, const uint32_t* to,
                       uint32_t count, cudaStream_t stream);

/// Page i of `to` = page pages[i] from base on, unless that is ~0. Otherwise as above.
cudaError_t gather_pages(const void* base, uint64_t page_bytes, const uint32_t* pages,
                         uint32_t count, void* to, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
