// The text of the last error of each thread, and the one way to set it.
#ifndef MAGNITUDE_KERNELS_ERROR_H_
#define MAGNITUDE_KERNELS_ERROR_H_

namespace magnitude {

// Keeps the text (formatted like printf, cut at 255 bytes) for this thread and returns -1.
int fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The text of the last fail() on this thread; empty before the first.
const char* last_error();

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_ERROR_H_
