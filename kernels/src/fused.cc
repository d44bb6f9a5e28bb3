#include "fused.h"

#include "dispatch.h"
#include "error.h"
#include "pool.h"
#include "product.h"
#include "scratch.h"
#include "wide.h"

namespace magnitude {
namespace {

// About as many multiplications as a number takes: a norm reads it twice, a gate has an exponential and a division.
constexpr int64_t kNormWork = 4;
constexpr int64_t kGateWork = 32;
constexpr int64_t kAddWork = 2;

struct Norming {
  const RowMath* math;
  const float* x;
  int64_t k;
  const float* gain;
  float epsilon;
  float* out;
};

void norm_rows(void* context, int64_t begin, int64_t end) {
  const Norming& call = *static_cast<const Norming*>(context);
  for (int64_t row = begin; row < end; ++row) {
    call.math->norm(call.x + row * call.k, call.k, call.gain, call.epsilon, call.out + row * call.k);
  }
}

struct Finishing {
  const RowMath* math;
  const float* product;  // [m, n], which may be y
  int64_t n;
  const Fusion* fusion;
  int64_t width;
  float* y;
};

// Plain loops where numbers of different outputs do not meet: whatever the compiler makes of them has the same bits.
void finish_rows(void* context, int64_t begin, int64_t end) {
  const Finishing& call = *static_cast<const Finishing*>(context);
  for (int64_t row = begin; row < end; ++row) {
    const float* product = call.product + row * call.n;
    float* y = call.y + row * call.width;
    if (call.fusion->gated) {
      call.math->gate(product, product + call.width, call.width, y);
      product = y;
    }
    if (call.fusion->residual == nullptr) continue;
    const float* residual = call.fusion->residual + row * call.width;
    for (int64_t i = 0; i < call.width; ++i) y[i] = product[i] + residual[i];
  }
}

struct Biasing {
  const float* bias;
  int64_t n;
  float* product;
};

void add_bias(void* context, int64_t begin, int64_t end) {
  const Biasing& call = *static_cast<const Biasing*>(context);
  for (int64_t row = begin; row < end; ++row) {
    float* product = call.product + row * call.n;
    for (int64_t i = 0; i < call.n; ++i) product[i] += call.bias[i];
  }
}

}  // namespace

int fused_product(const Packed& weights, const Fusion& fusion, const float* x, int64_t m, float* y) {
  if (m == 0) return 0;
  const RowMath& math = *isa().row_math;
  const int64_t width = width_of(weights, fusion);
  // What a call needs between its steps: normed rows, and rows of products that are not results yet.
  const int64_t normed_floats = fusion.gain != nullptr ? m * weights.k : 0;
  const bool apart = fusion.gated || fusion.residual == y;
  const int64_t product_floats = apart ? m * weights.n : 0;
  const size_t bytes = static_cast<size_t>(normed_floats + product_floats) * sizeof(float);
  const Scratch scratch(bytes, ScratchOf::kAround);
  float* normed = reinterpret_cast<float*>(scratch.data());
  if (bytes > 0 && normed == nullptr) return fail("no memory for %zu bytes of rows", bytes);
  float* product_rows = apart ? normed + normed_floats : y;

  if (fusion.gain != nullptr) {
    Norming norming{&math, x, weights.k, fusion.gain, fusion.epsilon, normed};
    run_tasks(m, kNormWork * weights.k, norm_rows, &norming);
    x = normed;
  }
  if (product(weights, x, m, product_rows) != 0) return -1;
  add_wide(x, m, weights.k, fusion.channels, fusion.wide, fusion.wide_rows, weights.n, product_rows);
  if (fusion.bias != nullptr) {
    Biasing biasing{fusion.bias, weights.n, product_rows};
    run_tasks(m, kAddWork * weights.n, add_bias, &biasing);
  }
  if (apart || fusion.residual != nullptr) {
    Finishing finishing{&math, product_rows, weights.n, &fusion, width, y};
    run_tasks(m, (fusion.gated ? kGateWork : kAddWork) * width, finish_rows, &finishing);
  }
  return 0;
}

}  // namespace magnitude
