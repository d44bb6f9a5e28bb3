// The loops around one tile, the same for all instruction sets: rows in groups, and outputs that end within a tile.
// Internal linkage on purpose, as this is compiled anew for each instruction set.
#ifndef MAGNITUDE_KERNELS_TILE_STORE_H_
#define MAGNITUDE_KERNELS_TILE_STORE_H_

#include <stdint.h>
#include <string.h>

#include "product.h"

namespace magnitude {
namespace {

// Where a group of rows' results of one tile go. A tile that reaches beyond n is computed into `spill` and copied.
struct TileOut {
  float* y;        // first row's first output of the tile
  int64_t stride;  // floats from row to row
};

// Calls Tile::template run<count>(part, tile, row, out) for all rows of the part, `kRows` at a time and what is left
// by smaller groups. All groups give a row the same bits.
template <typename Tile, int kRows>
inline void rows_of_tile(const ProductPart& part, int64_t tile, int64_t row_begin, int64_t row_end) {
  const int64_t n = part.weights->n;
  const int64_t first = tile * kTile;
  const int64_t outputs = n - first < kTile ? n - first : kTile;
  float spill[kRows * kTile];
  int64_t row = row_begin;
  while (row < row_end) {
    const int64_t left = row_end - row;
    TileOut out{part.y + row * n + first, n};
    if (outputs < kTile) out = TileOut{spill, kTile};
    int64_t count;
    if (left >= kRows) {
      count = kRows;
      Tile::template run<kRows>(part, tile, row, out);
    } else if (left >= 4 && kRows > 4) {
      count = 4;
      Tile::template run<4>(part, tile, row, out);
    } else if (left >= 2) {
      count = 2;
      Tile::template run<2>(part, tile, row, out);
    } else {
      count = 1;
      Tile::template run<1>(part, tile, row, out);
    }
    if (outputs < kTile) {
      for (int64_t i = 0; i < count; ++i) {
        memcpy(part.y + (row + i) * n + first, spill + i * kTile, static_cast<size_t>(outputs) * sizeof(float));
      }
    }
    row += count;
  }
}

// Rows that together have about this many bytes stay in the first-level cache (32 kB and more) while tiles pass by.
constexpr int64_t kPanelBytes = 16 * 1024;

// All of a part: a panel of rows that stays in cache, and all tiles for it.
template <typename Tile, int kRows>
inline void compute_part(const ProductPart& part) {
  int64_t panel = kPanelBytes / (part.weights->blocks * kBlock) / kRows * kRows;
  if (panel < kRows) panel = kRows;
  for (int64_t row = part.row_begin; row < part.row_end; row += panel) {
    const int64_t end = row + panel < part.row_end ? row + panel : part.row_end;
    for (int64_t tile = part.tile_begin; tile < part.tile_end; ++tile) {
      rows_of_tile<Tile, kRows>(part, tile, row, end);
    }
  }
}

}  // namespace
}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_TILE_STORE_H_
