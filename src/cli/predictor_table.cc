#include "cli/predictor_table.h"

#include <algorithm>

namespace reprise::cli {
namespace {

struct Candidate {
  std::string name;
  BlockPool pool = BlockPool::kSum;
  MakePredictor make;
};

std::vector<Candidate> candidates(const ComparisonCase& how) {
  const float factor = how.training->factor;
  const uint32_t period = how.training->validation.period;
  std::vector<Candidate> all;
  for (const NamedNet& own : how.nets) {
    all.push_back({own.name, own.net->pool, [=, heads = how.heads, net = own.net] {
                     return std::make_unique<NetworkPredictor>(heads, net, factor, period);
                   }});
  }
  for (const auto& [name, past] : {std::pair{"average 0.5", 0.5f},
                                   {"average 0.7", 0.7f},
                                   {"average 0.9", 0.9f},
                                   {"last row", 0.0f}}) {
    all.push_back({name, BlockPool::kSum, [past = past, heads = how.heads, period] {
                     return std::make_unique<AveragePredictor>(heads, past, period);
                   }});
  }
  all.push_back({"best blocks", BlockPool::kSum, {}});
  return all;
}

Status print_json(std::span<const Comparison> table, const ComparisonCase& how,
                  const std::string& file, Console& console) {
  auto rows = nlohmann::ordered_json::object();
  for (const Comparison& row : table) rows[row.name] = row.recovery;
  auto columns = nlohmann::ordered_json::array();
  for (const TestSet& set : how.sets) {
    for (const uint32_t share : kBudgetShares)
      columns.push_back({{"set", set.name}, {"share", share}});
  }
  return console.print_json({{"file", file}, {"columns", columns}, {"recovery", rows}});
}

// Whether an average finds as much as the first network, whose epoch the first set chose: in the
// mean of the others, if there are any.
bool beaten(std::span<const Comparison> table, const ComparisonCase& how) {
  const auto found = [&](const Comparison& row) {
    double sum = 0;
    for (size_t set = how.sets.size() > 1 ? 1 : 0; set < how.sets.size(); ++set)
      sum += row.recovery[set * std::size(kBudgetShares) + 1];
    return sum;
  };
  const auto plain = table.subspan(how.nets.size(), table.size() - how.nets.size() - 1);
  return std::ranges::any_of(
      plain, [&](const Comparison& row) { return found(row) >= found(table.front()); });
}

}  // namespace

BlockBudget share_budget(uint32_t length, uint32_t share) { return {length / share, 16, 32}; }

std::vector<Comparison> compare_predictors(const ComparisonCase& how, ThreadPool& pool) {
  std::vector<Comparison> table;
  for (const Candidate& own : candidates(how)) {
    Comparison& row = table.emplace_back(Comparison{own.name, {}});
    RecoveryCase one = how.training->validation;
    one.pool = own.pool;
    for (const TestSet& set : how.sets) {
      for (const uint32_t share : kBudgetShares) {
        one.budget = share_budget(how.length, share);
        row.recovery.push_back(
            closed_loop_recovery(set.recordings, one, how.training->first_layer, own.make, pool));
      }
    }
  }
  return table;
}

Status print_comparison(std::span<const Comparison> table, const ComparisonCase& how,
                        const std::string& file, Console& console) {
  if (console.json()) return print_json(table, how, file, console);
  std::string head = "| recovery |", rule = "|---|", body;
  for (const TestSet& set : how.sets) {
    for (const uint32_t share : kBudgetShares) {
      head += fmt::format(" {} 1/{} |", set.name, share);
      rule += "---|";
    }
  }
  for (const Comparison& row : table) {
    body += fmt::format("| {} |", row.name);
    for (const double recovery : row.recovery) body += fmt::format(" {:.2f} % |", 100.0 * recovery);
    body += "\n";
  }
  if (beaten(table, how))
    body += "An average finds as much as the network and costs less: leave file= away.\n";
  if (how.sets.size() == 1)
    body +=
        "The network is of the epoch that validated best: --test shows texts that chose none.\n";
  return console.print(fmt::format("{}\n{}\n{}", head, rule, body));
}

}  // namespace reprise::cli
