#include "packed.h"

#include <cstring>

#include "error.h"
#include "half.h"

namespace magnitude {
namespace {

// Bounds far above any model (a vocabulary of 2²⁰, a width of 2¹⁸) that keep every product of sizes within 64 bits.
constexpr int64_t kMostOutputs = int64_t{1} << 28;
constexpr int64_t kMostInputs = int64_t{1} << 24;

constexpr char kMagic[8] = {'M', 'A', 'G', 'N', 'P', 'A', 'C', 'K'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kLayout = 1;  // tiles of 8 outputs, blocks of 32

// As it lies in memory and in files, little-endian.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t layout;
  uint32_t kind;
  uint32_t header_bytes;
  int64_t n;
  int64_t k;
  int64_t tile_bytes;
  int64_t all_bytes;
  uint64_t checksum;  // of the bytes before it
};
static_assert(sizeof(Header) == 64, "the first tile starts with a cache line");

// Header words mixed one after the other (multiply by an odd constant, fold the high half down). It is computed with
// each product, so it is quick; it guards against files cut or overwritten, not against an adversary.
uint64_t header_checksum(const Header& header) {
  uint64_t words[7];
  static_assert(sizeof words == offsetof(Header, checksum), "everything before the checksum");
  std::memcpy(words, &header, sizeof words);
  uint64_t sum = 0;
  for (uint64_t word : words) {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;  // 2⁶⁴ divided by the golden ratio: odd, and its bits look random
    sum ^= sum >> 32;
  }
  return sum;
}

Header header_of(const Packed& shape) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.layout = kLayout;
  header.kind = static_cast<uint32_t>(shape.kind);
  header.header_bytes = sizeof(Header);
  header.n = shape.n;
  header.k = shape.k;
  header.tile_bytes = shape.tile_bytes;
  header.all_bytes = packed_bytes(shape);
  header.checksum = header_checksum(header);
  return header;
}

int64_t value_bytes(Kind kind) { return kind == Kind::kInt8 ? kBlock : kBlock / 2; }  // a block of one output

// All numbers must survive the way to float16: infinite ones would turn results into NaN much later.
int check_halves(const char* name, const float* numbers, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if ((float_to_half(numbers[i]) & 0x7c00u) == 0x7c00u) {
      return fail("%s[%lld] is %g, which float16 cannot hold", name, static_cast<long long>(i),
                  static_cast<double>(numbers[i]));
    }
  }
  return 0;
}

void put_halves(const float* numbers, const Packed& shape, int64_t tile, int64_t block, uint8_t* out) {
  for (int64_t lane = 0; lane < kTile; ++lane) {
    const int64_t output = tile * kTile + lane;
    const uint16_t half = output < shape.n ? float_to_half(numbers[output * shape.blocks + block]) : 0;
    std::memcpy(out + lane * 2, &half, sizeof half);
  }
}

// Value i of a block of one output, as it was given, or what stands for zero.
uint8_t value_at(const Packed& shape, const uint8_t* values, int64_t output, int64_t block, int64_t i) {
  const bool there = output < shape.n && block * kBlock + i < shape.k;
  if (shape.kind == Kind::kInt8) {
    return there ? values[(output * shape.blocks + block) * kBlock + i] : 0;
  }
  if (!there) return shape.kind == Kind::kInt4 ? 8 : 0;
  const uint8_t pair = values[(output * shape.blocks + block) * (kBlock / 2) + i / 2];
  return i % 2 == 0 ? pair & 0xf : pair >> 4;
}

void put_values(const uint8_t* values, const Packed& shape, int64_t tile, int64_t block, uint8_t* out) {
  for (int64_t group = 0; group < kBlock / 4; ++group) {
    for (int64_t lane = 0; lane < kTile; ++lane) {
      for (int64_t i = 0; i < 4; ++i) {
        const uint8_t value = value_at(shape, values, tile * kTile + lane, block, group * 4 + i);
        if (shape.kind == Kind::kInt8) {
          out[group * 32 + lane * 4 + i] = value;
        } else {
          uint8_t* byte = out + (group % 4) * 32 + lane * 4 + i;
          *byte = group < 4 ? value : static_cast<uint8_t>(*byte | value << 4);
        }
      }
    }
  }
}

}  // namespace

int describe_packed(int kind, int64_t n, int64_t k, Packed* out) {
  if (kind < static_cast<int>(Kind::kInt4) || kind > static_cast<int>(Kind::kInt8)) {
    return fail("there is no kind %d of weights", kind);
  }
  if (n < 1 || n > kMostOutputs) return fail("n is %lld, not within 1 and 2^28", static_cast<long long>(n));
  if (k < 1 || k > kMostInputs) return fail("k is %lld, not within 1 and 2^24", static_cast<long long>(k));
  Packed shape{};
  shape.kind = static_cast<Kind>(kind);
  shape.n = n;
  shape.k = k;
  shape.blocks = (k + kBlock - 1) / kBlock;
  shape.tiles = (n + kTile - 1) / kTile;
  const int64_t halves = kTile * 2;
  shape.minima_offset = halves;
  shape.values_offset = shape.kind == Kind::kInt4Minimum ? 2 * halves : halves;
  shape.block_bytes = shape.values_offset + kTile * value_bytes(shape.kind);
  shape.tile_bytes = shape.blocks * shape.block_bytes;
  *out = shape;
  return 0;
}

int64_t packed_bytes(const Packed& shape) {
  return static_cast<int64_t>(sizeof(Header)) + shape.tiles * shape.tile_bytes;
}

int open_packed(const void* packed, size_t bytes, Packed* out) {
  if (packed == nullptr) return fail("packed weights are null");
  Header header;
  if (bytes < sizeof header) return fail("%zu bytes are too few for packed weights", bytes);
  std::memcpy(&header, packed, sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return fail("these are no packed weights");
  if (header.version != kVersion || header.layout != kLayout) {
    return fail("the weights are packed by version %u in layout %u; this library reads version %u in layout %u",
                header.version, header.layout, kVersion, kLayout);
  }
  if (header.checksum != header_checksum(header)) return fail("the header of the packed weights is damaged");
  Packed shape{};
  if (describe_packed(static_cast<int>(header.kind), header.n, header.k, &shape) != 0) return -1;
  const Header expected = header_of(shape);
  if (std::memcmp(&header, &expected, sizeof header) != 0) return fail("the header of the packed weights is wrong");
  if (bytes != static_cast<size_t>(header.all_bytes)) {
    return fail("the packed weights have %zu bytes, and their header says %lld", bytes,
                static_cast<long long>(header.all_bytes));
  }
  shape.data = static_cast<const uint8_t*>(packed) + sizeof header;
  *out = shape;
  return 0;
}

int pack(int kind, int64_t n, int64_t k, const void* values, size_t values_bytes, const float* scales,
         const float* minima, void* packed, size_t bytes) {
  Packed shape{};
  if (describe_packed(kind, n, k, &shape) != 0) return -1;
  if (values == nullptr || scales == nullptr || packed == nullptr) return fail("values, scales or packed are null");
  if ((minima != nullptr) != (shape.kind == Kind::kInt4Minimum)) {
    return fail("minima belong to weights of kind %d and to no others", static_cast<int>(Kind::kInt4Minimum));
  }
  const int64_t expected_values = n * shape.blocks * value_bytes(shape.kind);
  if (values_bytes != static_cast<size_t>(expected_values)) {
    return fail("values have %zu bytes, and their shape says %lld", values_bytes,
                static_cast<long long>(expected_values));
  }
  if (bytes != static_cast<size_t>(packed_bytes(shape))) {
    return fail("packed has %zu bytes, and the shape says %lld", bytes, static_cast<long long>(packed_bytes(shape)));
  }
  if (check_halves("scales", scales, n * shape.blocks) != 0) return -1;
  if (minima != nullptr && check_halves("minima", minima, n * shape.blocks) != 0) return -1;

  std::memset(packed, 0, bytes);
  const Header header = header_of(shape);
  std::memcpy(packed, &header, sizeof header);
  uint8_t* out = static_cast<uint8_t*>(packed) + sizeof header;
  for (int64_t tile = 0; tile < shape.tiles; ++tile) {
    for (int64_t block = 0; block < shape.blocks; ++block) {
      put_halves(scales, shape, tile, block, out);
      if (minima != nullptr) put_halves(minima, shape, tile, block, out + shape.minima_offset);
      put_values(static_cast<const uint8_t*>(values), shape, tile, block, out + shape.values_offset);
      out += shape.block_bytes;
    }
  }
  return 0;
}

}  // namespace magnitude
