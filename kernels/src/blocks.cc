#include "blocks.h"

#include <memory>
#include <new>

#include "error.h"
#include "packed.h"

namespace magnitude {
namespace {

// Of 4 bits: the code that MatMulNBits takes for zero. Of 8 bits it is 128.
constexpr float kZeroCode = 8.0f;

int describe_blocks(int bits, int64_t n, int64_t blocks, bool corrected, Packed* shape) {
  if (bits != 4 && bits != 8) return fail("weights have 4 or 8 bits, not %d", bits);
  if (corrected && bits != 4) return fail("weights of 8 bits have no correction");
  // Beyond what describe_packed() allows, and few enough for 64 bits.
  if (blocks < 1 || blocks > (int64_t{1} << 24)) {
    return fail("there are %lld blocks, not within 1 and 2^24", static_cast<long long>(blocks));
  }
  const Kind kind = corrected ? Kind::kInt4Minimum : bits == 4 ? Kind::kInt4 : Kind::kInt8;
  return describe_packed(static_cast<int>(kind), n, blocks * kBlock, shape);
}

}  // namespace

int64_t packed_blocks_bytes(int bits, int64_t n, int64_t blocks, bool corrected) {
  Packed shape{};
  return describe_blocks(bits, n, blocks, corrected, &shape) != 0 ? -1 : packed_bytes(shape);
}

int pack_blocks(int bits, int64_t n, int64_t blocks, const uint8_t* codes, size_t codes_bytes, const float* scales,
                const float* correction, void* packed, size_t bytes) {
  Packed shape{};
  if (describe_blocks(bits, n, blocks, correction != nullptr, &shape) != 0) return -1;
  if (codes == nullptr || scales == nullptr) return fail("codes or scales are null");
  const int64_t count = n * blocks;
  const int64_t expected = count * kBlock * bits / 8;
  if (codes_bytes != static_cast<size_t>(expected)) {
    return fail("codes have %zu bytes, and their shape says %lld", codes_bytes, static_cast<long long>(expected));
  }
  const int kind = static_cast<int>(shape.kind);
  if (bits == 8) {
    const std::unique_ptr<uint8_t[]> values(new (std::nothrow) uint8_t[static_cast<size_t>(expected)]);
    if (values == nullptr) return fail("no memory for %lld bytes of weights", static_cast<long long>(expected));
    // A code less 128 is the same byte with another highest bit, read with a sign.
    for (int64_t i = 0; i < expected; ++i) values[i] = static_cast<uint8_t>(codes[i] ^ 0x80u);
    return pack(kind, n, shape.k, values.get(), static_cast<size_t>(expected), scales, nullptr, packed, bytes);
  }
  if (correction == nullptr) return pack(kind, n, shape.k, codes, codes_bytes, scales, nullptr, packed, bytes);
  const std::unique_ptr<float[]> minima(new (std::nothrow) float[static_cast<size_t>(count)]);
  if (minima == nullptr) return fail("no memory for %lld minima", static_cast<long long>(count));
  for (int64_t output = 0; output < n; ++output) {
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t at = output * blocks + block;
      minima[at] = correction[block * n + output] - kZeroCode * scales[at];
    }
  }
  return pack(kind, n, shape.k, codes, codes_bytes, scales, minima.get(), packed, bytes);
}

}  // namespace magnitude
