// What compare and report have in common: which run files, against what, by which rules.
#pragma once

#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/flags.h"
#include "cli/output_file.h"
#include "eval/compare.h"
#include "eval/settings.h"

namespace reprise::cli {

class CompareFlags {
 public:
  void declare(FlagSet& flags);
  /// Reads the files and joins their runs; the settings stay valid as long as this object.
  Result<eval::Settings> read();
  eval::CompareOptions options() const;
  /// That an option's file is none of the runs.
  Status check_output(std::string_view option, const std::string& path) const {
    return check_not_read(option, path, paths_);
  }

 private:
  std::vector<std::string> paths_;
  std::vector<eval::RunFile> files_;
  std::string reference_ = "full", equal_ = "none";
  float tolerance_ = 0.02f, margin_ = 0.01f, floor_ = 0;
  bool allow_different_ = false, all_metrics_ = false, pool_seeds_ = false;
};

}  // namespace reprise::cli
