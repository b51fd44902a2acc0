#include "methods/reattention/voting_heads.h"

#include <algorithm>
#include <charconv>

namespace reprise {
namespace {

bool read(std::string_view text, uint32_t& value) {
  const auto end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end;
}

}  // namespace

Result<VotingHeads> VotingHeads::parse(std::string_view text, const ModelConfig& config) {
  VotingHeads heads;
  heads.heads_ = config.n_head;
  if (text == "all") return heads;
  heads.marks_.resize(size_t{config.n_layer} * config.n_head);
  for (bool more = true; more;) {
    const size_t slash = text.find('/');
    const std::string_view item = text.substr(0, slash);
    const size_t colon = std::min(item.find(':'), item.size());
    uint32_t layer = 0, head = 0;
    const bool whole = read(item.substr(0, colon), layer) && colon < item.size() &&
                       read(item.substr(colon + 1), head);
    if (!whole || layer >= config.n_layer || head >= config.n_head) {
      return fail(ErrorCode::kInvalidArgument,
                  "reattention: heads: \"{}\" is not LAYER:HEAD with a layer below {} and a head "
                  "below {}",
                  item, config.n_layer, config.n_head);
    }
    heads.marks_[size_t{layer} * config.n_head + head] = 1;
    more = slash != std::string_view::npos;
    if (more) text.remove_prefix(slash + 1);
  }
  return heads;
}

size_t VotingHeads::count(uint32_t layer) const {
  return all() ? heads_ : static_cast<size_t>(std::ranges::count(of(layer), 1));
}

}  // namespace reprise
