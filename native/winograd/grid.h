// How the threads share out tiles and panels of outputs. What one core writes another reads slowly: a thread
// transforms what it multiplies itself, at the price of doing some of it twice.
#pragma once

#include <algorithm>
#include <cstdint>

#include "winograd/winograd.h"

namespace npu::winograd {

struct Range {
  std::int64_t first, last;
  std::int64_t count() const { return last - first; }
};

inline Range share(std::int64_t total, std::int64_t parts, std::int64_t index) {
  return {total * index / parts, total * (index + 1) / parts};
}

// The tiles of a batch of images.
struct Tiles {
  std::int64_t images = 0, rows = 0, columns = 0;

  struct Place {
    std::int64_t image, y, x;
  };

  static Tiles of(std::int64_t images, std::int64_t height, std::int64_t width) {
    return {images, (height + kTile - 1) / kTile, (width + kTile - 1) / kTile};
  }
  std::int64_t count() const { return images * rows * columns; }
  Place place(std::int64_t tile) const {
    const std::int64_t within = tile % (rows * columns);
    return {tile / (rows * columns), within / columns * kTile, within % columns * kTile};
  }
};

struct Grid {
  std::int64_t along_tiles = 1, along_panels = 1;

  std::int64_t parts() const { return along_tiles * along_panels; }
  Range tiles(std::int64_t part, std::int64_t total) const {
    return share(total, along_tiles, part % along_tiles);
  }
  Range panels(std::int64_t part, std::int64_t total) const {
    return share(total, along_panels, part / along_tiles);
  }
};

// The grid of so many parts that costs least, by a function of it. None has a part without a panel.
template <class Cost>
Grid cheapest_grid(std::int64_t parts, std::int64_t panels, Cost&& cost) {
  Grid best{parts, 1};
  for (std::int64_t n = 2; n <= parts && n <= panels; ++n) {
    const Grid grid{parts / n, n};
    if (parts % n == 0 && cost(grid) < cost(best)) best = grid;
  }
  return best;
}

// The pixels of some tiles, as whole rows of tiles, if those of all images are in order.
template <class T>
Ahead pixels_ahead(const Tiles& all, const Image& image, std::int64_t distance, const T* first,
                   const Range& tiles) {
  if (tiles.count() <= 0 || image.row != image.width * image.pixel || distance != image.height * image.row) {
    return {};
  }
  const Tiles::Place from = all.place(tiles.first), to = all.place(tiles.last - 1);
  const std::int64_t begin = from.image * image.height + std::min(from.y, image.height);
  const std::int64_t end = to.image * image.height + std::min(to.y + kTile, image.height);
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  return {reinterpret_cast<const char*>(first + begin * image.row), image.channels * kSize,
          image.pixel * kSize, std::max<std::int64_t>(end - begin, 0) * image.width};
}

// Instructions for each channel, counted in the kernels: of a transformed patch or tile, of transforming
// weights for an output, of reading them transformed.
inline constexpr std::int64_t kPatchCost = 9, kFilterCost = 12, kReadCost = 5;

}  // namespace npu::winograd
