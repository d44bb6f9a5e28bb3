// Packed weights: one layout for all instruction sets, made so that a product with one row reads memory in one go.
//
// A header of 64 bytes, then tiles of 8 outputs each, without gaps. A tile is ⌈k/32⌉ blocks, a block is
//   scales    [8] float16, one for each output
//   minima    the same, for MK_INT4_MINIMUM only
//   values    128 bytes for INT4, 256 bytes for INT8
// Outputs beyond n have scale 0, values beyond k are 0 (INT4: q = 8 or 0). Scales lie beside their values although that
// spoils the alignment: read in one line instead of two, weights come from memory 1.0 to 2.9 times as fast (one core
// of a Zen 4, a single row).
//
// Values of a block come in groups of 4 along k: group g holds k = 4g…4g+3 of output 0, then of output 1 … 7, which is
// the operand of the dot-product instructions with 8 sums (x86) or two times 4 (Arm). INT8: groups 0…7 one after the
// other. INT4: byte i of vector j (32 bytes, j = 0…3) has byte i of group j in its low half, of group j+4 in its high
// half, so that one mask and one shift give two groups.
#ifndef MAGNITUDE_KERNELS_PACKED_H_
#define MAGNITUDE_KERNELS_PACKED_H_

#include <stddef.h>
#include <stdint.h>

namespace magnitude {

constexpr int64_t kBlock = 32;  // values along k that share a scale
constexpr int64_t kTile = 8;    // outputs side by side

enum class Kind : int { kInt4 = 1, kInt4Minimum = 2, kInt8 = 3 };

// Packed weights after their header has been checked: plain numbers and a borrowed pointer.
struct Packed {
  Kind kind;
  int64_t n;               // outputs
  int64_t k;               // inputs
  int64_t blocks;          // ⌈k / kBlock⌉
  int64_t tiles;           // ⌈n / kTile⌉
  int64_t block_bytes;     // from one block to the next
  int64_t minima_offset;   // from a block's start; of no meaning without minima
  int64_t values_offset;   // from a block's start
  int64_t tile_bytes;      // from one tile to the next
  const uint8_t* data;     // the first tile
};

// The shape of packed weights, with data null. -1, and an error, where kind, n or k are out of bounds.
int describe_packed(int kind, int64_t n, int64_t k, Packed* out);

// All bytes of the packed form, header included.
int64_t packed_bytes(const Packed& shape);

// Checks the header of `bytes` bytes at `packed` and fills `out`. -1, and an error, for anything that is not exactly
// what pack() wrote: nothing beyond `bytes` is ever read, here or by a product with `out`.
int open_packed(const void* packed, size_t bytes, Packed* out);

// What mk_pack() says.
int pack(int kind, int64_t n, int64_t k, const void* values, size_t values_bytes, const float* scales,
         const float* minima, void* packed, size_t bytes);

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_PACKED_H_
