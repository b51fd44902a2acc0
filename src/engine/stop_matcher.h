// Ends an answer before a stop string, holding back text that may become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace reprise {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  /// Adds text and returns what can be shown. Once stopped() nothing more comes.
  std::string push(std::string_view text);
  /// The text held back, when the answer has ended for another reason.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace reprise
