// Settings that read as many bytes per token, found or interpolated between two budgets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/compare.h"
#include "eval/settings.h"

namespace reprise::eval {

/// The control that chooses keys by chance.
inline constexpr std::string_view kRandomFamily = "random";

Cost cost_of(const TaskRecords& records);

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

/// The family's setting nearest to bytes within the relative tolerance, else its two settings
/// around bytes; nullopt when neither exists.
std::optional<Blend> find_at_bytes(const Settings& settings, const std::string& task,
                                   std::string_view family, double bytes, double tolerance);

/// For a comparison of one task: a group at the bytes of every setting of the reference's family,
/// or if that is full, of random, or if that was not run, of the first other family.
std::vector<EqualBytesGroup> equal_bytes_groups(const Settings& settings, const std::string& task,
                                                const std::string& metric,
                                                const CompareOptions& options);

/// A remark for each setting that is not shown to beat random at equal bytes.
std::vector<std::string> control_notes(const Settings& settings, const std::string& task,
                                       const std::string& metric, const CompareOptions& options);

}  // namespace reprise::eval
