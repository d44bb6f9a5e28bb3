// Memory that a call needs and gives back. Each thread keeps its own from call to call, up to a bound
// (MEMORY_POOL_SIZE), so that the calls of a decode step allocate nothing.
#ifndef MAGNITUDE_KERNELS_SCRATCH_H_
#define MAGNITUDE_KERNELS_SCRATCH_H_

#include <stddef.h>
#include <stdint.h>

namespace magnitude {

// A cache line, to whose border parts of such memory are rounded up.
constexpr int64_t kScratchAlignment = 64;

inline int64_t aligned(int64_t bytes) { return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment; }

// Whose memory it is: of an operator's innermost call, or of what makes several such calls and keeps rows between them.
enum class ScratchOf { kCall, kAround };

// Bytes for the calling thread, aligned to 64 and not cleared. Of each kind at most one Scratch of a thread lives at a
// time.
class Scratch {
 public:
  explicit Scratch(size_t bytes, ScratchOf which = ScratchOf::kCall);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Null when memory is short, and may be when no bytes were wanted.
  unsigned char* data() const { return data_; }

 private:
  ScratchOf which_;
  unsigned char* data_;
};

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_SCRATCH_H_
