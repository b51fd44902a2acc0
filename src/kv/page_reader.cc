#include "kv/page_reader.h"

#include <xxhash.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>

#include "kv/file_io.h"

namespace reprise {
namespace {

constexpr int kThreads = 16;             // requests that a disk gets at a time
constexpr size_t kRunBytes = 192 << 10;  // of one request, where pages follow one another

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
  try {
    while (threads_.size() < kThreads) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // The system starts no more: those that there are read.
  }
  if (threads_.empty()) {
    for (Read* each : reads) read(*each);
    return;
  }
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
  std::vector<Read*> run;
  std::unique_lock lock(mutex_);
  while (true) {
    more_.wait(lock, [&] { return stop_ || !urgent_.empty() || !later_.empty(); });
    if (stop_) return;
    auto& queue = urgent_.empty() ? later_ : urgent_;
    take_run(queue, run);
    lock.unlock();
    read_run(run);
    lock.lock();
    if (waiting_) done_.notify_all();
  }
}

bool PageReader::reads_in_place(const Read& read) const {
  return !direct_ || is_aligned(read.data);
}

void PageReader::take_run(std::deque<Read*>& queue, std::vector<Read*>& run) const {
  const size_t most = std::min(kRunBytes / page_bytes_, queue.size() / kThreads);
  run.clear();
  do {
    run.push_back(queue.front());
    queue.pop_front();
  } while (run.size() < most && queue.front()->offset == run.back()->offset + page_bytes_ &&
           reads_in_place(*run.back()) && reads_in_place(*queue.front()));
}

void PageReader::read_run(std::span<Read* const> run) const {
  std::vector<iovec> parts;
  for (const Read* read : run) parts.push_back({read->data, page_bytes_});
  const bool whole = run.size() > 1 && read_at(file_, parts, run.front()->offset);
  for (Read* each : run) {
    if (whole) {
      each->state = checked(*each);
    } else {
      read(*each);  // so that what one page lacks is its own trouble
    }
  }
}

PageReader::Read::State PageReader::checked(const Read& read) const {
  return XXH3_64bits(read.data, page_bytes_) == read.checksum ? Read::kDone : Read::kFailed;
}

void PageReader::read(Read& read) const {
  std::unique_ptr<std::byte, Free> aligned;
  std::byte* to = read.data;
  if (!reads_in_place(read)) {
    aligned.reset(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, page_bytes_)));
    to = aligned.get();
  }
  const bool whole = to != nullptr && read_at(file_, to, page_bytes_, read.offset);
  if (whole && aligned) std::memcpy(read.data, to, page_bytes_);
  read.state = whole ? checked(read) : Read::kFailed;
}

}  // namespace reprise
