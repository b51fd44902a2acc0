#include "text/unicode_forms.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

// As HF tokenizers: marks that take no space, that take some, and that enclose.
TEST(UnicodeForms, MarksOfAllKindsAreAccents) {
  EXPECT_EQ(strip_accents("e\u0301a\u0903\u20ddb"), "eab");
  EXPECT_EQ(strip_accents("\u00e9"), "\u00e9");  // one character, until it is decomposed
}

}  // namespace
}  // namespace reprise
