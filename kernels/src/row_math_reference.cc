#include "row_math_lanes.h"

namespace magnitude {

const RowMath kRowMathReference = row_math<PlainLanes>();

}  // namespace magnitude
