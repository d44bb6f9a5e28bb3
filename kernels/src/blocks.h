// Weights as graphs store them (ONNX Runtime's MatMulNBits with blocks of 32), on their way to the packed form.
#ifndef MAGNITUDE_KERNELS_BLOCKS_H_
#define MAGNITUDE_KERNELS_BLOCKS_H_

#include <stddef.h>
#include <stdint.h>

namespace magnitude {

// How many bytes mk_pack_blocks() writes, or -1 and an error.
int64_t packed_blocks_bytes(int bits, int64_t n, int64_t blocks, bool corrected);

// What mk_pack_blocks() says.
int pack_blocks(int bits, int64_t n, int64_t blocks, const uint8_t* codes, size_t codes_bytes, const float* scales,
                const float* correction, void* packed, size_t bytes);

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_BLOCKS_H_
