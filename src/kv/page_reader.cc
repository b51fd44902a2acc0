#include "kv/page_reader.h"

#include <xxhash.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "kv/file_io.h"

namespace reprise {
namespace {

constexpr int kThreads = 16;  // requests that a disk gets at a time

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

bool is_aligned(const std::byte* data) {
  return reinterpret_cast<uintptr_t>(data) % kDirectAlignment == 0;
}

}  // namespace

PageReader::PageReader(int file, size_t page_bytes, bool direct)
    : file_(file), page_bytes_(page_bytes), direct_(direct) {}

PageReader::~PageReader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  more_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PageReader::start(std::span<Read* const> reads, bool urgent) {
  if (reads.empty()) return;
  while (threads_.size() < kThreads) threads_.emplace_back([this] { work(); });
  {
    const std::lock_guard lock(mutex_);
    auto& queue = urgent ? urgent_ : later_;
    queue.insert(queue.end(), reads.begin(), reads.end());
  }
  for (size_t i = 0; i < std::min<size_t>(reads.size(), kThreads); ++i) more_.notify_one();
}

void PageReader::wait(const Read& read) {
  if (read.state != Read::kUnderWay) return;
  std::unique_lock lock(mutex_);
  waiting_ = true;
  done_.wait(lock, [&] { return read.state != Read::kUnderWay; });
  waiting_ = false;
}

void PageReader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    more_.wait(lock, [&] { return stop_ || !urgent_.empty() || !later_.empty(); });
    if (stop_) return;
    auto& queue = urgent_.empty() ? later_ : urgent_;
    Read& next = *queue.front();
    queue.pop_front();
    lock.unlock();
    read(next);
    lock.lock();
    if (waiting_) done_.notify_all();
  }
}

void PageReader::read(Read& read) const {
  std::unique_ptr<std::byte, Free> aligned;
  std::byte* to = read.data;
  if (direct_ && !is_aligned(to)) {
    aligned.reset(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, page_bytes_)));
    to = aligned.get();
  }
  bool whole = to != nullptr && read_at(file_, to, page_bytes_, read.offset);
  if (whole && aligned) std::memcpy(read.data, to, page_bytes_);
  whole = whole && XXH3_64bits(read.data, page_bytes_) == read.checksum;
  read.state = whole ? Read::kDone : Read::kFailed;
}

}  // namespace reprise
