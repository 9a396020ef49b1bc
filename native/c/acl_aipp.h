// Pre-processing of images that is set for each run (dynamic AIPP), as ge/aipp.py does it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "acl/acl.h"
#include "model/container.h"
#include "model/package.h"

namespace npu::acl {

// What is set for one image of a batch.
struct ImageSettings {
  bool crop = false, resize = false, padding = false;
  int crop_x = 0, crop_y = 0, crop_width = 0, crop_height = 0;
  int resize_width = 0, resize_height = 0;
  int top = 0, bottom = 0, left = 0, right = 0;
  std::array<float, 4> mean{}, minimum{}, reciprocal{1, 1, 1, 1};
};

}  // namespace npu::acl

struct aclmdlAIPP {
  std::uint64_t batch = 1;
  aclAippInputFormat format = ACL_RGB888_U8;
  int width = 0, height = 0;  // of the images that are fed; 0: as the model takes them
  bool swap_colours = false, swap_fourth = false, convert = false;
  std::array<int, 9> matrix{256, 0, 0, 0, 256, 0, 0, 0, 256};
  std::array<int, 3> input_bias{}, output_bias{};
  std::map<std::uint64_t, npu::acl::ImageSettings> each;  // what is set for the first only holds for all
};

namespace npu::acl {

// A batch of images of bytes as the model's input takes it; raises an AclError where settings and sizes
// disagree.
std::vector<std::byte> prepare_images(const aclmdlAIPP& settings, const Port& port, bool channels_last,
                                      Bytes images);

}  // namespace npu::acl
