#include "row_math_lanes.h"

namespace magnitude {

const RowMath kRowMathAvx2 = row_math<Avx2Lanes>();

}  // namespace magnitude
