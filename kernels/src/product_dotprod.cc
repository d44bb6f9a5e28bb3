#include "dots_dotprod.h"

namespace magnitude {

// Four rows: their sums and values take 24 of 32 registers, and a vector of weights four.
void product_dotprod(const ProductPart& part) { compute_neon<DotProductDots, 4>(part); }

}  // namespace magnitude
