// The instruction sets of this build, and which of them is in use.
#ifndef MAGNITUDE_KERNELS_DISPATCH_H_
#define MAGNITUDE_KERNELS_DISPATCH_H_

#include "attention.h"
#include "product.h"
#include "row_math.h"
#include "rows.h"

namespace magnitude {

// One way through all operators.
struct Isa {
  const char* name;
  RoundRow round_row;
  ComputePart compute_part;
  const AttentionPath* attention;
  const RowMath* row_math;
};

// Those that this processor has, from the slowest to the fastest. isa_at() is null beyond the count.
int isa_count();
const Isa* isa_at(int index);

// The one in use; the fastest from the start. A call takes it once, so that all its parts go the same way.
const Isa& isa();

// Uses the named one, or the fastest for null. -1, and an error, when it is not among them.
int isa_use(const char* name);

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_DISPATCH_H_
