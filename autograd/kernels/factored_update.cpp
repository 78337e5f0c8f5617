#include "autograd/kernels/factored_update.h"

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void factored_squares_tile(const FactoredTile& tile);
                         void factored_norms_tile(const FactoredTile& tile);
                         void adafactor_apply_tile(const FactoredTile& tile);
                         void came_average_tile(const FactoredTile& tile);
                         void came_apply_tile(const FactoredTile& tile))

namespace {

void for_tiles(std::span<const FactoredTile> tiles, void (*run)(const FactoredTile&)) {
  parallel_for(static_cast<int64_t>(tiles.size()), 1, [&](int64_t begin, int64_t end) {
    for (const FactoredTile& tile :
         tiles.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin))) {
      run(tile);
    }
  });
}

}  // namespace

void factored_squares(std::span<const FactoredTile> tiles) {
  for_tiles(tiles, TAPESTRY_DISPATCH(factored_squares_tile));
}

void factored_norms(std::span<const FactoredTile> tiles) {
  for_tiles(tiles, TAPESTRY_DISPATCH(factored_norms_tile));
}

void adafactor_apply(std::span<const FactoredTile> tiles) {
  for_tiles(tiles, TAPESTRY_DISPATCH(adafactor_apply_tile));
}

void came_average(std::span<const FactoredTile> tiles) {
  for_tiles(tiles, TAPESTRY_DISPATCH(came_average_tile));
}

void came_apply(std::span<const FactoredTile> tiles) {
  for_tiles(tiles, TAPESTRY_DISPATCH(came_apply_tile));
}

}  // namespace tapestry::kernels
