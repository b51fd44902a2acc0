#include "eval/run/identity.h"

#include <fmt/chrono.h>
#include <xxhash.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "base/mapped_file.h"
#include "base/try.h"
#include "model/random_model.h"

namespace reprise::eval {
namespace {

class Hash {
 public:
  Hash() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_64bits_reset(state_.get()); }

  void add(const void* data, size_t size) { XXH3_64bits_update(state_.get(), data, size); }
  void add(uint64_t number) { add(&number, sizeof number); }
  // With its length, so that neighbours cannot be mistaken for one another.
  void add(std::string_view text) {
    add(uint64_t{text.size()});
    add(text.data(), text.size());
  }
  std::string hex() const { return fmt::format("{:016x}", XXH3_64bits_digest(state_.get())); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

Status add_file(const std::string& path, Hash& hash) {
  constexpr size_t kPiece = 64 << 10, kPieces = 256;
  REPRISE_TRY(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  hash.add(uint64_t{bytes.size()});
  const size_t stride = std::max(kPiece, bytes.size() / kPieces);
  for (size_t at = 0; at < bytes.size(); at += stride)
    hash.add(&bytes[at], std::min(kPiece, bytes.size() - at));
  const auto end = bytes.last(std::min(kPiece, bytes.size()));
  hash.add(end.data(), end.size());
  return {};
}

}  // namespace

Result<std::string> weights_identity(const std::string& path) {
  namespace fs = std::filesystem;
  Hash hash;
  if (path.starts_with(kRandomPrefix)) {  // the name says every weight
    hash.add(path);
    return hash.hex();
  }
  std::vector<std::string> files = {path};
  std::error_code unreadable;  // is told when the path is opened as a file
  if (fs::is_directory(path, unreadable)) {
    files.clear();
    for (const auto& entry : fs::directory_iterator(path, unreadable)) {
      const std::string ending = entry.path().extension().string();
      if (ending == ".safetensors" || ending == ".json") files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
  }
  for (const std::string& file : files) REPRISE_CHECK(add_file(file, hash));
  return hash.hex();
}

std::string task_identity(const TaskData& data) {
  Hash hash;
  for (const Sample& sample : data.samples) {
    hash.add(sample.id);
    for (const Message& message : sample.messages) {
      hash.add(message.role);
      hash.add(message.content);
    }
    hash.add(sample.answer_prefix);
    hash.add(sample.gold);
    hash.add(uint64_t{sample.max_tokens});
    for (const std::string& stop : sample.stop) hash.add(stop);
  }
  for (const Document& document : data.documents) {
    hash.add(document.id);
    hash.add(document.text);
  }
  return hash.hex();
}

void set_run_id(RunRecord& run) {
  RunRecord identity = run;
  identity.id.clear();
  identity.time.clear();
  Hash hash;
  hash.add(to_line(identity));
  run.id = hash.hex();
}

std::string utc_time() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

std::string machine_name(uint32_t threads) {
  constexpr std::string_view kKey = "model name";
  std::string name = "unknown CPU";
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);) {
    const size_t colon = line.find(": ");
    if (!line.starts_with(kKey) || colon == std::string::npos) continue;
    name = line.substr(colon + 2);
    break;
  }
  return fmt::format("{}, {} threads", name, threads);
}

}  // namespace reprise::eval
