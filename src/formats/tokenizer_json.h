// Parts of the tokenizer.json reader.
#pragma once

#include <simdjson.h>

#include <string>
#include <string_view>

#include "formats/tokenizer_data.h"
#include "reprise/error.h"

namespace reprise::tokenizer_json {

using Element = simdjson::dom::element;
using Object = simdjson::dom::object;

/// Where an error is reported: the file and the part of it.
struct Context {
  std::string_view file;
  std::string_view part;
};

tl::unexpected<Error> wrong_json(const Context& context, std::string_view key,
                                 std::string_view wanted);

/// A member that may be absent or null, in which case the value is left as it is; kBadJson when it
/// has another type.
Status read_field(const Context& context, Object object, std::string_view key, std::string& value);
Status read_field(const Context& context, Object object, std::string_view key, bool& value);
Status read_field(const Context& context, Object object, std::string_view key, uint32_t& value);

/// Normalizers, pre-tokenizers or decoders: null, one component or a Sequence, flattened. kTooDeep.
Result<std::vector<TokenizerStep>> read_steps(const Context& context, Element root);

/// add_bos, add_eos and their ids out of the post-processor. kUnsupportedTokenizer names a kind
/// that is not known.
Status read_post_processor(const Context& context, Element root, TokenizerData& data);

}  // namespace reprise::tokenizer_json
