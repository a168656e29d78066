#include "runtime/base/dynamic_library.h"

#include <dlfcn.h>

#include "runtime/base/error.h"

namespace ashlar {

DynamicLibrary::DynamicLibrary(const char* file, const std::string& built_with, std::string what,
                               const std::string& remedy)
    : what_(std::move(what)), handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) {
    return;
  }
  const char* text = dlerror();
  const std::string why = text == nullptr ? "" : text;  // of the search that the user can change
  handle_ = dlopen((built_with + "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(handle_ != nullptr, ErrorCode::kUsage, "{} does not load: {}. {}", what_, why, remedy);
}

void* DynamicLibrary::address_of(const char* name) const {
  void* const address = dlsym(handle_, name);
  REQUIRE(address != nullptr, ErrorCode::kUsage, "{}: the library that was loaded has no {}; it is too old", what_,
          name);
  return address;
}

}  // namespace ashlar
