// What operators have cost since the start or the last reset: sums, added to when a call returns.
//
// A call pays for two looks at the clock and some additions, together under 0.1 µs; the shortest product of a decode
// step takes several. ENABLE_PROFILING=OFF leaves out even that.
#ifndef MAGNITUDE_KERNELS_COUNTERS_H_
#define MAGNITUDE_KERNELS_COUNTERS_H_

#include <stdint.h>

#include "magnitude_kernels.h"

namespace magnitude {

enum class Operator : int { kProduct, kAppend, kAttention, kAttentionOverBytes };
constexpr int kOperators = 4;

// Counts a call from its making to its end. Bytes are those that the call must read, or write to the
// cache, at least once.
class Counted {
 public:
  Counted(Operator which, int64_t weight_bytes, int64_t kv_bytes, int64_t rows);
  ~Counted();
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  Operator which_;
  int64_t weight_bytes_, kv_bytes_, rows_, start_ns_;
};

// What mk_operator_name(), mk_counters_read() and mk_counters_reset() say.
const char* operator_name(int which);
int read_counters(int which, mk_counters* out);
void reset_counters();

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_COUNTERS_H_
