// Settings that read as many bytes per token, found or interpolated between two budgets.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/compare.h"
#include "eval/settings.h"

namespace reprise::eval {

/// The control that chooses keys by chance, alone or behind decorators ("dense+random").
bool is_random(std::string_view family);

/// Of the samples that have the metric, so that a score stands beside what it cost.
Cost cost_of(const TaskRecords& records, std::string_view metric);

/// A family at a number of bytes per token: weight 0 is lower alone, 1 is upper alone.
struct Blend {
  const Setting* lower = nullptr;
  const Setting* upper = nullptr;
  double weight = 0;
  double bytes = 0;

  bool interpolated() const { return lower != upper; }
  std::string name() const;
  /// Over the samples and steps that both settings have.
  Scored scored(const std::string& task, std::string_view metric) const;
};

/// Of the settings whose family is asked for: the nearest to bytes within the relative tolerance,
/// else the two around bytes; nullopt when neither exists.
std::optional<Blend> find_at_bytes(const Settings& settings, const std::string& task,
                                   std::string_view metric,
                                   const std::function<bool(std::string_view)>& is_asked_for,
                                   double bytes, double tolerance);

/// For a comparison of one task: a group at the bytes of every setting of the reference's family,
/// or if that is full, of random, or if that was not run, of the first other family.
std::vector<EqualBytesGroup> equal_bytes_groups(const Settings& settings, const std::string& task,
                                                const std::string& metric,
                                                const CompareOptions& options);

/// A remark for each setting that is not shown to beat random at equal bytes.
std::vector<std::string> control_notes(const Settings& settings, const std::string& task,
                                       const std::string& metric, const CompareOptions& options);

}  // namespace reprise::eval
