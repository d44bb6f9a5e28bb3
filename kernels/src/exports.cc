// The C interface: checks of arguments, and calls into the library. No exception leaves these functions, as nothing
// below them throws.
#include "counters.h"
#include "dispatch.h"
#include "error.h"
#include "magnitude_kernels.h"
#include "packed.h"
#include "pool.h"
#include "product.h"

using magnitude::fail;

static_assert(MK_INT4 == static_cast<int>(magnitude::Kind::kInt4), "the interface's kinds are the library's");
static_assert(MK_INT4_MINIMUM == static_cast<int>(magnitude::Kind::kInt4Minimum), "");
static_assert(MK_INT8 == static_cast<int>(magnitude::Kind::kInt8), "");

int mk_version(void) { return MK_VERSION; }

const char* mk_error(void) { return magnitude::last_error(); }

int mk_isa_count(void) { return magnitude::isa_count(); }

const char* mk_isa_name(int index) {
  const magnitude::Isa* isa = magnitude::isa_at(index);
  return isa != nullptr ? isa->name : nullptr;
}

int mk_isa_use(const char* name) { return magnitude::isa_use(name); }

const char* mk_isa(void) { return magnitude::isa().name; }

int64_t mk_pack_bytes(int kind, int64_t n, int64_t k) {
  magnitude::Packed shape{};
  if (magnitude::describe_packed(kind, n, k, &shape) != 0) return -1;
  return magnitude::packed_bytes(shape);
}

int mk_pack(int kind, int64_t n, int64_t k, const void* values, size_t values_bytes, const float* scales,
            const float* minima, void* packed, size_t packed_bytes) {
  return magnitude::pack(kind, n, k, values, values_bytes, scales, minima, packed, packed_bytes);
}

int mk_product(const void* packed, size_t packed_bytes, const float* x, int64_t m, int64_t k, float* y, int64_t n) {
  magnitude::Packed weights{};
  if (magnitude::open_packed(packed, packed_bytes, &weights) != 0) return -1;
  if (k != weights.k || n != weights.n) {
    return fail("the weights are [%lld, %lld], and the call is for [%lld, %lld]", static_cast<long long>(weights.n),
                static_cast<long long>(weights.k), static_cast<long long>(n), static_cast<long long>(k));
  }
  // More rows than any batch has, and few enough for sizes to stay within 64 bits.
  if (m < 0 || m > (int64_t{1} << 24)) return fail("m is %lld, not within 0 and 2^24", static_cast<long long>(m));
  if (m > 0 && (x == nullptr || y == nullptr)) return fail("x or y is null");
  return magnitude::product(weights, x, m, y);
}

int mk_pool_set(int threads, const int* cores, const float* shares) {
  return magnitude::pool_set(threads, cores, shares);
}

int mk_pool_threads(void) { return magnitude::pool_threads(); }

int mk_pool_stop(void) { return magnitude::pool_stop(); }

const char* mk_operator_name(int index) { return magnitude::operator_name(index); }

int mk_counters_read(int index, mk_counters* out) { return magnitude::read_counters(index, out); }

void mk_counters_reset(void) { magnitude::reset_counters(); }
