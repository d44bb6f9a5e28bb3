#include "product.h"

#include <cstdint>

#include "counters.h"
#include "dispatch.h"
#include "error.h"
#include "pool.h"
#include "scratch.h"

namespace magnitude {
namespace {

// Rounding a number takes 0.28 ns (AVX2), as long as about so many multiplications.
constexpr int64_t kRoundingWork = 16;

struct RoundCall {
  const Isa* isa;
  const float* x;
  int64_t k;
  const Rows* rows;
};

void round_rows(void* context, int64_t begin, int64_t end) {
  const RoundCall& call = *static_cast<const RoundCall*>(context);
  for (int64_t row = begin; row < end; ++row) call.isa->round_row(call.x + row * call.k, call.k, row, *call.rows);
}

struct TileCall {
  const Isa* isa;
  ProductPart part;
};

void compute_tiles(void* context, int64_t begin, int64_t end) {
  const TileCall& call = *static_cast<const TileCall*>(context);
  ProductPart part = call.part;
  part.tile_begin = begin;
  part.tile_end = end;
  call.isa->compute_part(part);
}

}  // namespace

int product(const Packed& weights, const float* x, int64_t m, float* y) {
  if (m == 0) return 0;
  const Counted counted(Operator::kProduct, weights.tiles * weights.tile_bytes, 0, m);
  const int64_t all_blocks = m * weights.blocks;
  const int64_t bytes = all_blocks * (kBlock + static_cast<int64_t>(sizeof(float) + sizeof(int32_t)));
  const Scratch scratch(static_cast<size_t>(bytes));
  if (scratch.data() == nullptr) return fail("no memory for %lld bytes of rows", static_cast<long long>(bytes));
  Rows rows;
  rows.values = reinterpret_cast<int8_t*>(scratch.data());
  rows.scales = reinterpret_cast<float*>(scratch.data() + all_blocks * kBlock);
  rows.sums = reinterpret_cast<int32_t*>(rows.scales + all_blocks);
  rows.blocks = weights.blocks;

  const Isa& used = isa();
  RoundCall round{&used, x, weights.k, &rows};
  run_tasks(m, kRoundingWork * weights.k, round_rows, &round);
  TileCall tiles{&used, ProductPart{&weights, &rows, 0, m, 0, 0, y}};
  run_tasks(weights.tiles, kTile * weights.k * m, compute_tiles, &tiles);
  return 0;
}

}  // namespace magnitude
