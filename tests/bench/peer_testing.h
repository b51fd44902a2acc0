// A peer for tests: a shell script in place of the Python that would run another engine.
#pragma once

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "engine/tiny_model.h"

namespace reprise::test {

/// Is what peers are started with until it is destroyed.
class FakePeer {
 public:
  /// cases: those of a shell case over the request's line.
  explicit FakePeer(const std::string& cases) {
    const std::string path = scratch_folder() + "/peer.sh";
    std::ofstream(path) << "#!/bin/sh\nwhile read -r line; do\n  case \"$line\" in\n"
                        << cases << "\n  esac\ndone\n";
    chmod(path.c_str(), 0700);
    setenv("REPRISE_PEER_PYTHON", path.c_str(), 1);
  }
  ~FakePeer() { unsetenv("REPRISE_PEER_PYTHON"); }
  FakePeer(const FakePeer&) = delete;
  FakePeer& operator=(const FakePeer&) = delete;
};

}  // namespace reprise::test
