#include "eval/run/scope.h"

#include "base/try.h"
#include "reprise/options.h"

namespace reprise::eval {

Result<Scope> Scope::parse(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  Scope scope{.generates = name != "teacher"};
  if (colon == std::string_view::npos && (name == "decode" || name == "teacher")) return scope;
  if (colon == std::string_view::npos || (name != "tail" && name != "teacher")) {
    return fail(ErrorCode::kInvalidArgument,
                "--scope: \"{}\" is not decode, teacher, tail:N or teacher:N (as tail:32)", text);
  }
  REPRISE_CHECK(
      parse_option({"scope tail", "", "tokens", 1, 1 << 20}, text.substr(colon + 1), scope.tail));
  return scope;
}

}  // namespace reprise::eval
