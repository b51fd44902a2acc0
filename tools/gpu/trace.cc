// Writes every kernel of a program to a file, for timeline.py:
//   CUDA_INJECTION64_PATH=build-cuda/libtrace.so TRACE_OUT=trace.csv reprise bench ...
#include <cupti.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20, kRecordAlignment = 8;

std::FILE* out = nullptr;
std::mutex mutex;

void give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kRecordAlignment, kBufferBytes));
  *bytes = kBufferBytes;
  *most_records = 0;  // as many as fit
}

void write_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    std::fprintf(out, "%llu,%llu,%u,%s\n", static_cast<unsigned long long>(kernel->start),
                 static_cast<unsigned long long>(kernel->end), kernel->streamId, kernel->name);
  }
  std::free(buffer);
}

void finish() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  std::fclose(out);
}

}  // namespace

/// Called by the driver when it starts. Returns whether the file could be opened.
extern "C" int InitializeInjection() {
  const char* path = std::getenv("TRACE_OUT");
  out = std::fopen(path != nullptr ? path : "trace.csv", "w");
  if (out == nullptr) return 0;
  std::fputs("start_ns,end_ns,stream,kernel\n", out);
  cuptiActivityRegisterCallbacks(give_buffer, write_buffer);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  std::atexit(finish);
  return 1;
}
