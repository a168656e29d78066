// A library of others that is opened when it is first needed: linked the usual way it would cost every program its
// mapping at start, and no program could start where it is missing.
#pragma once

#include <string>

namespace ashlar {

class DynamicLibrary {
 public:
  // Blocks the host. The loader's own search first (LD_LIBRARY_PATH, the program's run path), then `built_with`, the
  // folder it was in when this program was built. Throws kUsage, beginning with `what` ("--device cuda: cuBLASLt") and
  // ending with `remedy`. Never closed: such libraries leave threads and exit handlers behind.
  DynamicLibrary(const char* file, const std::string& built_with, std::string what, const std::string& remedy);

  // Sets `function` to the library's function of that name; throws kUsage when there is none.
  template <typename Function>
  void find(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  std::string what_;
  void* handle_;
};

}  // namespace ashlar
