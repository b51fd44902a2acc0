// Reads of pages from disk beside other work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace reprise {

/// A disk is fast only when it has many requests at a time, or large ones. Reads start in the order
/// in which they are asked for, urgent ones first; those that follow one another in the file become
/// one request where there are more than requests.
class PageReader {
 public:
  struct Read {
    enum State : uint8_t { kUnderWay, kDone, kFailed };
    uint64_t offset = 0, checksum = 0;  // xxh3 of the page
    std::byte* data = nullptr;
    std::atomic<State> state{kUnderWay};
  };

  /// direct: the file is read past the system's cache, which needs aligned memory.
  PageReader(int file, size_t page_bytes, bool direct);
  ~PageReader();  // what has not started is never read
  PageReader(const PageReader&) = delete;
  PageReader& operator=(const PageReader&) = delete;

  /// Reads stay where they are until they are no longer under way.
  void start(std::span<Read* const> reads, bool urgent);
  void wait(const Read& read);
  /// Reads here and now.
  void read(Read& read) const;

 private:
  void work();
  bool reads_in_place(const Read& read) const;
  /// Takes the next read and those after it that can be one request with it.
  void take_run(std::deque<Read*>& queue, std::vector<Read*>& run) const;
  void read_run(std::span<Read* const> run) const;
  /// What became of a read whose bytes are there.
  Read::State checked(const Read& read) const;

  const int file_;
  const size_t page_bytes_;
  const bool direct_;
  std::mutex mutex_;
  std::condition_variable more_, done_;
  std::deque<Read*> urgent_, later_;
  bool stop_ = false, waiting_ = false;
  std::vector<std::thread> threads_;  // started with the first read
};

}  // namespace reprise
