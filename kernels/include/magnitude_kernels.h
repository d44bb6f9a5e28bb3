// The C interface of Magnitude's kernels: products with block-quantised weights, the threads that compute them, and
// what they have cost. For Python (ctypes), for the test driver, and for whoever embeds the library.
//
// Errors: functions that return int return 0 for success and -1 for an error, unless they say otherwise; mk_error()
// then has its text. Arguments are checked before anything is computed or written: after an error the outputs are
// as they were.
//
// Memory: every buffer belongs to the caller and is used only until the function returns. No buffer needs an
// alignment beyond that of its type; `packed` needs none at all.
//
// Threads: all functions may be called from any thread. Products and attention run on the pool (mk_pool_set); a
// caller that finds it at work for another one computes alone.
//
// Exactness: a row of a result has the same bits whatever the other rows are, how many of them there are, how many
// threads compute, and which instruction set is in use.
#ifndef MAGNITUDE_KERNELS_H_
#define MAGNITUDE_KERNELS_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MK_API __attribute__((visibility("default")))
#else
#define MK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// The version of this interface and of the operators (kernels/ops). It rises with each change that an existing caller
// would notice, and with each that a new graph counts on.
#define MK_VERSION 3
MK_API int mk_version(void);

// What the last error on this thread was: one sentence, never null, empty before the first error.
MK_API const char* mk_error(void);

// Instruction sets ---------------------------------------------------------------------------------------------------

// The instruction sets of this build that this processor has, from the slowest (index 0, "reference") to the fastest,
// which is in use from the start. mk_isa_name() is null beyond the count.
MK_API int mk_isa_count(void);
MK_API const char* mk_isa_name(int index);

// Uses the named one from now on; null chooses the fastest. An error when the processor or the build lacks it. Not
// meant for times when another thread computes: what runs then may use either.
MK_API int mk_isa_use(const char* name);
MK_API const char* mk_isa(void);

// Products -----------------------------------------------------------------------------------------------------------

// y[m, n] = x[m, k] · w[n, k]ᵀ. Weights are quantised in blocks of 32 along k, each with a scale and, by kind, a
// minimum:
enum {
  MK_INT4 = 1,          // w = scale · (q − 8), q in 0…15
  MK_INT4_MINIMUM = 2,  // w = scale · q + minimum, q in 0…15
  MK_INT8 = 3,          // w = scale · q, q in −128…127
};

// How many bytes the packed weights of one matrix take, or -1.
MK_API int64_t mk_pack_bytes(int kind, int64_t n, int64_t k);

// Packs weights into the one layout that all instruction sets read (kernels/src/packed.h). The result can be written
// to a file, mapped and used on any little-endian machine.
//   values     n rows of ⌈k/32⌉ blocks, row-major. INT4: 16 bytes a block, value 2i in the low half of byte i and
//              value 2i+1 in the high half. INT8: 32 signed bytes a block. Values beyond k are ignored.
//   scales     [n, ⌈k/32⌉], finite; rounded to float16, so an error where float16 has no such number.
//   minima     the same shape and rule for MK_INT4_MINIMUM, null for the others.
//   *_bytes    the sizes of values and packed; an error unless exactly as computed.
MK_API int mk_pack(int kind, int64_t n, int64_t k, const void* values, size_t values_bytes, const float* scales,
                   const float* minima, void* packed, size_t packed_bytes);

// The same for weights as ONNX Runtime's MatMulNBits has them with blocks of 32, k a multiple of that:
//   codes       [n, blocks, 16] with 4 bits (8 stands for zero), [n, blocks, 32] with 8 bits (128 does).
//   scales      [n, blocks].
//   correction  null, or with 4 bits [blocks, n]: w = scale · (code − 8) + correction. Packed as MK_INT4_MINIMUM, its
//               minimum rounded to float16: exact where both come from a format with float16 scales and minima.
// mk_pack_blocks_bytes() is the size of the result, or -1.
MK_API int64_t mk_pack_blocks_bytes(int bits, int64_t n, int64_t blocks, int corrected);
MK_API int mk_pack_blocks(int bits, int64_t n, int64_t blocks, const void* codes, size_t codes_bytes,
                          const float* scales, const float* correction, void* packed, size_t packed_bytes);

// Computes y[m, n] from x[m, k], both row-major and without gaps. n and k must be those of the packed weights; m may
// be 0.
//
// Rows of x are rounded to INT8 in blocks of 32 along k, with scale max|x| / 127. The rounding adds at most
// 0.501 · scale to each value: an outlier costs the other values of its own block their precision and no others. So
//   |y − exact| ≤ Σ over blocks of 0.501 · max|x| / 127 · Σ|w|, plus float32 rounding (2 · blocks · 2⁻²⁴ of Σ|x·w|).
// A block whose largest value is below 2⁻¹⁰⁰ counts as zero. A row with an infinity or a NaN in it gives a row of NaN.
MK_API int mk_product(const void* packed, size_t packed_bytes, const float* x, int64_t m, int64_t k, float* y,
                      int64_t n);

// Attention ----------------------------------------------------------------------------------------------------------

// The KV cache of one layer: keys and values [slots][kv_heads][positions][head_size], the last axis without gaps.
// Over bytes, a value is scale · q with q in −127…127 and one scale for each slot, KV head and position, keys and
// values apart: [slots][kv_heads][positions]. kernels/src/cache_bytes.h bounds the error.
typedef struct {
  int32_t over_bytes;  // 1: int8 with scales; 0: float32, and scales are null
  int32_t reserved;    // 0
  void* keys;
  void* values;
  float* key_scales;
  float* value_scales;
  // The sizes of the four buffers, by which everything else is checked.
  int64_t keys_bytes, values_bytes, key_scales_bytes, value_scales_bytes;
  int64_t slots, kv_heads, positions;
  int64_t head_size;  // a multiple of 8, at most 256
  // In elements, the same for keys and values. All five 0: without gaps.
  int64_t slot_stride, head_stride, position_stride, scale_slot_stride, scale_head_stride;
} mk_kv_cache;

// Writes new keys and values, float32 [rows, kv_heads, head_size] with a stride between rows in floats, to where
// slots[row] and positions[row] say; a row at position −1 is padding. Where two rows name one place, the later stays.
MK_API int mk_kv_append(const mk_kv_cache* cache, int64_t rows, const int64_t* slots, const int64_t* positions,
                        const float* keys, int64_t keys_bytes, int64_t keys_stride, const float* values,
                        int64_t values_bytes, int64_t values_stride);

// Attention of query rows, float32 [rows, heads, head_size], over the cache, into out of the same shape; both with a
// stride between rows in floats. The row at position p sees positions max(0, p − window + 1)…p of its slot (window 0:
// all from 0), its own key and value among them, so append first. Query head h uses KV head h / (heads / kv_heads).
// Scores are multiplied by `scale`. A row at position −1 is padding: its result is zero.
MK_API int mk_attend(const mk_kv_cache* cache, int64_t rows, const int64_t* slots, const int64_t* positions,
                     int64_t heads, int64_t window, float scale, const float* queries, int64_t queries_bytes,
                     int64_t queries_stride, float* out, int64_t out_bytes, int64_t out_stride);

// The pool -----------------------------------------------------------------------------------------------------------

// From the next call on, `threads` threads compute, the caller among them as thread 0; 1 is the start, and means the
// caller alone. Threads that are no longer wanted sleep until they are again.
//   cores    null: threads run wherever this process may. Else the core of each thread, -1 for wherever it may.
//            cores[0] is for the calling thread, whose later children inherit it: -1 leaves that thread alone.
//   shares   null: equal. Else the relative speed of each thread, > 0: what it is given at first. Threads that are
//            done take over from those that are not.
// Returns how many threads could not have their core (offline, or not among this process's): they run wherever they
// may. -1 is an error, as always; the pool is then as it was.
MK_API int mk_pool_set(int threads, const int* cores, const float* shares);
MK_API int mk_pool_threads(void);

// Ends all threads of the pool, whose width is 1 again. Waits for a call that is under way on another thread.
MK_API int mk_pool_stop(void);

// Counters -----------------------------------------------------------------------------------------------------------

// What one kind of operator has cost in this process, whoever called it. All zero where the library was built with
// ENABLE_PROFILING=OFF.
typedef struct {
  uint64_t calls;
  uint64_t nanoseconds;   // from call to return, on the caller's clock
  uint64_t weight_bytes;  // packed weights that the calls had to read
  uint64_t kv_bytes;      // of the KV cache
  uint64_t rows;          // rows computed: of x, or queries
} mk_counters;

// The kinds of operators, from 0 on; null beyond the last.
MK_API const char* mk_operator_name(int index);
MK_API int mk_counters_read(int index, mk_counters* out);
MK_API void mk_counters_reset(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MAGNITUDE_KERNELS_H_
