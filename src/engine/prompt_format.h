// Which chat template a model's prompts are rendered with.
#pragma once

#include <string>
#include <string_view>

#include "formats/tokenizer_data.h"
#include "reprise/error.h"

namespace reprise {

/// The source of the template that EngineOptions::chat_template asks for: the name of a built-in
/// one or a file. Empty: the model's own, else the one of its family, which special tokens of its
/// vocabulary tell, or its architecture. Errors: kFileNotFound names the built-in ones; kBadString;
/// kTemplateSyntax of a file, while a model's own template fails each prompt instead, so that such
/// a model still continues plain text.
Result<std::string> choose_template(const std::string& asked, const TokenizerData& tokenizer,
                                    std::string_view architecture);

}  // namespace reprise
