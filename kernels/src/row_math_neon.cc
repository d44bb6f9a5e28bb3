#include "row_math_lanes.h"

namespace magnitude {

const RowMath kRowMathNeon = row_math<NeonLanes>();

}  // namespace magnitude
