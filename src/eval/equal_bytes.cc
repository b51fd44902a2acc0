#include "eval/equal_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "eval/paired.h"

namespace reprise::eval {
namespace {

double bytes_of(const Setting& setting, const std::string& task, std::string_view metric) {
  const TaskRecords* records = setting.find(task);
  return records == nullptr ? std::numeric_limits<double>::quiet_NaN()
                            : cost_of(*records, metric).bytes();
}

std::vector<std::string> families(const Settings& settings) {
  std::vector<std::string> names;
  for (const Setting& setting : settings.all)
    if (std::find(names.begin(), names.end(), setting.family) == names.end())
      names.push_back(setting.family);
  return names;
}

// Between the values that both have.
template <class Key>
std::map<Key, double> blend(const std::map<Key, double>& lower, const std::map<Key, double>& upper,
                            double weight) {
  std::map<Key, double> blended;
  for (const auto& [key, value] : lower)
    if (const auto other = upper.find(key); other != upper.end())
      blended.emplace(key, (1 - weight) * value + weight * other->second);
  return blended;
}

// Whose bytes the groups are formed at.
std::string anchor_family(const Settings& settings) {
  const std::string& reference = settings.ref().family;
  if (reference != "full") return reference;
  const std::vector<std::string> names = families(settings);
  if (const auto random = std::find_if(names.begin(), names.end(), is_random);
      random != names.end())
    return *random;
  const auto other = std::find_if(names.begin(), names.end(),
                                  [](const std::string& name) { return name != "full"; });
  return other == names.end() ? std::string() : *other;
}

// Adjusts the p values of one column for making all its tests.
void adjust(const std::vector<Difference*>& family, bool lower, const CompareOptions& options) {
  std::vector<double> p;
  p.reserve(family.size());
  for (const Difference* difference : family) p.push_back(difference->p);
  const std::vector<double> adjusted = holm_adjusted(p);
  for (size_t i = 0; i < family.size(); ++i) {
    family[i]->p_holm = adjusted[i];
    conclude(*family[i], lower, options);
  }
}

EqualBytesGroup group_at(const Settings& settings, const std::string& task,
                         const std::string& metric, const Setting& point,
                         const CompareOptions& options) {
  const bool lower = lower_is_better(metric);
  EqualBytesGroup group{point.label, bytes_of(point, task, metric), {}, {}};
  const auto random =
      find_at_bytes(settings, task, metric, is_random, group.bytes, options.tolerance);
  const TaskRecords* reference = settings.ref().find(task);
  for (const std::string& family : families(settings)) {
    const auto is_family = [&](std::string_view name) { return name == family; };
    const auto found =
        find_at_bytes(settings, task, metric, is_family, group.bytes, options.tolerance);
    if (!found) {
      group.absent.push_back(family);
      continue;
    }
    const Scored scored = found->scored(task, metric);
    if (scored.samples.empty() && scored.steps.empty()) continue;
    EqualBytesRow row{family, found->name(), found->interpolated(), found->bytes, 0, {}, {}};
    row.score = score_of(scored, options.seed).mean;
    if (reference != nullptr)
      row.to_reference = paired_difference(scored, reference->scored(metric), lower, options);
    if (random && !is_random(family))
      row.to_random = paired_difference(scored, random->scored(task, metric), lower, options);
    group.rows.push_back(std::move(row));
  }
  std::vector<Difference*> to_reference, to_random;
  for (EqualBytesRow& row : group.rows) {
    to_reference.push_back(&row.to_reference);
    if (row.to_random) to_random.push_back(&*row.to_random);
  }
  adjust(to_reference, lower, options);
  adjust(to_random, lower, options);
  return group;
}

}  // namespace

bool is_random(std::string_view family) {
  return family == "random" || family.ends_with("+random");
}

double Cost::bytes() const { return std::isnan(index_bytes) ? kv_bytes : kv_bytes + index_bytes; }

Cost cost_of(const TaskRecords& records, std::string_view metric) {
  const auto mean = [&](std::string_view name) { return records.mean_counter(name, metric); };
  return {mean("kv_bytes_per_token"), mean("index_bytes_read_per_token"),
          mean("full_kv_bytes_per_token"), mean("index_bytes")};
}

std::string Blend::name() const {
  return interpolated() ? fmt::format("{} .. {}", lower->label, upper->label) : lower->label;
}

Scored Blend::scored(const std::string& task, std::string_view metric) const {
  Scored scored = lower->find(task)->scored(metric);
  if (!interpolated()) return scored;
  const Scored others = upper->find(task)->scored(metric);
  scored.samples = blend(scored.samples, others.samples, weight);
  StepValues steps;
  for (const auto& [id, positions] : scored.steps)
    if (const auto other = others.steps.find(id); other != others.steps.end())
      steps.emplace(id, blend(positions, other->second, weight));
  scored.steps = std::move(steps);
  return scored;
}

std::optional<Blend> find_at_bytes(const Settings& settings, const std::string& task,
                                   std::string_view metric,
                                   const std::function<bool(std::string_view)>& is_asked_for,
                                   double bytes, double tolerance) {
  const Setting *lower = nullptr, *upper = nullptr, *nearest = nullptr;
  double at_lower = 0, at_upper = 0, at_nearest = 0;
  for (const Setting& setting : settings.all) {
    const double at = bytes_of(setting, task, metric);
    if (!is_asked_for(setting.family) || !std::isfinite(at)) continue;
    if (nearest == nullptr || std::abs(at - bytes) < std::abs(at_nearest - bytes)) {
      nearest = &setting;
      at_nearest = at;
    }
    if (at <= bytes && (lower == nullptr || at > at_lower)) {
      lower = &setting;
      at_lower = at;
    }
    if (at >= bytes && (upper == nullptr || at < at_upper)) {
      upper = &setting;
      at_upper = at;
    }
  }
  if (nearest != nullptr && std::abs(at_nearest - bytes) <= tolerance * bytes)
    return Blend{nearest, nearest, 0, at_nearest};
  if (lower == nullptr || upper == nullptr) return std::nullopt;
  return Blend{lower, upper, (bytes - at_lower) / (at_upper - at_lower), bytes};
}

std::vector<EqualBytesGroup> equal_bytes_groups(const Settings& settings, const std::string& task,
                                                const std::string& metric,
                                                const CompareOptions& options) {
  const std::string anchor = anchor_family(settings);
  std::vector<const Setting*> points;
  for (const Setting& setting : settings.all)
    if (setting.family == anchor && std::isfinite(bytes_of(setting, task, metric)))
      points.push_back(&setting);
  std::stable_sort(points.begin(), points.end(), [&](const Setting* a, const Setting* b) {
    return bytes_of(*a, task, metric) < bytes_of(*b, task, metric);
  });
  std::vector<EqualBytesGroup> groups;
  groups.reserve(points.size());
  for (const Setting* point : points)
    groups.push_back(group_at(settings, task, metric, *point, options));
  return groups;
}

std::vector<std::string> control_notes(const Settings& settings, const std::string& task,
                                       const std::string& metric, const CompareOptions& options) {
  std::vector<std::string> notes;
  std::vector<const Setting*> tested;
  std::vector<Difference> gains;
  bool has_random = false, has_policy = false;
  for (const Setting& setting : settings.all) {
    has_random |= is_random(setting.family);
    if (is_random(setting.family) || setting.family == "full") continue;
    has_policy = true;
    const double bytes = bytes_of(setting, task, metric);
    if (!std::isfinite(bytes)) continue;
    const auto random = find_at_bytes(settings, task, metric, is_random, bytes, options.tolerance);
    if (!random) {
      notes.push_back(
          fmt::format("{}: no run of random reads as many bytes ({} a token), so its "
                      "gain over chance is unknown",
                      setting.label, bytes_text(static_cast<uint64_t>(std::llround(bytes)))));
      continue;
    }
    tested.push_back(&setting);
    gains.push_back(paired_difference(setting.find(task)->scored(metric),
                                      random->scored(task, metric), lower_is_better(metric),
                                      options));
  }
  if (!has_random)
    return has_policy ? std::vector<std::string>{"the control policy random was not run: nothing "
                                                 "shows that choosing keys is better than chance"}
                      : std::vector<std::string>{};
  std::vector<Difference*> family;
  family.reserve(gains.size());
  for (Difference& gain : gains) family.push_back(&gain);
  adjust(family, lower_is_better(metric), options);
  for (size_t i = 0; i < gains.size(); ++i) {
    if (gains[i].verdict == Verdict::kBetter) continue;
    notes.push_back(fmt::format(
        "{} is not shown to beat random at equal bytes: difference {:.4g} [{:.4g}, {:.4g}], n = {}",
        tested[i]->label, gains[i].value.mean, gains[i].value.low, gains[i].value.high,
        gains[i].n));
  }
  return notes;
}

}  // namespace reprise::eval
