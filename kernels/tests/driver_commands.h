// What all commands of the driver use: reading bytes, answering.
#ifndef MAGNITUDE_KERNELS_DRIVER_COMMANDS_H_
#define MAGNITUDE_KERNELS_DRIVER_COMMANDS_H_

#include <cstddef>
#include <cstdio>
#include <vector>

#include "magnitude_kernels.h"

namespace magnitude {
namespace driver {

// Memory from the C++ allocator is aligned for floats.
using Bytes = std::vector<unsigned char>;

inline const float* floats(const Bytes& bytes) { return reinterpret_cast<const float*>(bytes.data()); }

// The next `size` bytes of standard input.
inline bool read(size_t size, Bytes* bytes) {
  bytes->resize(size);
  return std::fread(bytes->data(), 1, size, stdin) == size;
}

inline int answer(const void* bytes, size_t size) {
  std::printf("ok %zu\n", size);
  if (size > 0) std::fwrite(bytes, 1, size, stdout);
  return std::fflush(stdout);
}

// What the library says about its last call.
inline int answer_error() {
  std::printf("error %s\n", mk_error());
  return std::fflush(stdout);
}

// The test and the driver disagree: nothing that follows would be read rightly.
inline int refuse(const char* line) {
  std::fprintf(stderr, "driver: cannot follow \"%s\"\n", line);
  return 1;
}

int runs(const char* line);    // driver_runs.cc
int attend(const char* line);  // driver_attention.cc
int norm(const char* line);    // driver_rows.cc
int gate(const char* line);    // driver_rows.cc

}  // namespace driver
}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_DRIVER_COMMANDS_H_
