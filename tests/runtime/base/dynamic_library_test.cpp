#include "runtime/base/dynamic_library.h"

#include <gmock/gmock.h>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

template <typename Call>
void expect_usage_error(Call&& call, const testing::Matcher<std::string>& text) {
  try {
    call();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(std::string(error.what()), text);
  }
}

TEST(DynamicLibrary, FindsFunctions) {
  const DynamicLibrary library("libm.so.6", "/nowhere", "--flag: maths", "");
  double (*root)(double) = nullptr;
  library.find(root, "sqrt");
  EXPECT_EQ(root(9), 3);
}

TEST(DynamicLibrary, SaysWhoAsksWhatIsMissingAndWhatToDo) {
  expect_usage_error([] { DynamicLibrary("libnone.so.1", "/nowhere", "--flag: none", "Install none"); },
                     AllOf(StartsWith("--flag: none does not load: libnone.so.1: "), HasSubstr(". Install none")));
  expect_usage_error(
      [] {
        void (*function)() = nullptr;
        DynamicLibrary("libm.so.6", "/nowhere", "--flag: maths", "").find(function, "no_such_function");
      },
      HasSubstr("--flag: maths: the library that was loaded has no no_such_function"));
}

}  // namespace
}  // namespace ashlar
