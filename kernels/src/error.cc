#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace magnitude {
namespace {

// A fixed buffer: an error must be reportable when memory is what is missing.
thread_local char text[256] = "";

}  // namespace

int fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return -1;
}

const char* last_error() { return text; }

}  // namespace magnitude
