// acl/acl.h: settings of dynamic AIPP, and the pre-processing of images.
#include "c/acl_aipp.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "c/acl_state.h"
#include "core/half.h"

namespace npu::acl {
namespace {

constexpr int kMaxSide = 1 << 14;  // the number of bytes of an image is an int

// The byte layout of an image: interleaved channels, or a plane of luma and interleaved chroma at half size.
struct SourceFormat {
  aclAippInputFormat code;
  int channels;
  bool semi_planar, leading, yuv;  // leading: has a fourth channel before the others
};

constexpr SourceFormat kFormats[] = {
    {ACL_YUV420SP_U8, 3, true, false, true},  {ACL_YUV400_U8, 1, false, false, true},
    {ACL_RGB888_U8, 3, false, false, false},  {ACL_XRGB8888_U8, 4, false, true, false},
    {ACL_ARGB8888_U8, 4, false, true, false}, {ACL_AYUV444_U8, 4, false, true, true}};

const SourceFormat& format_of(aclAippInputFormat code) {
  const auto* found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                   [&](const SourceFormat& known) { return known.code == code; });
  require(found != std::end(kFormats), "the input format " + std::to_string(code) + " is not supported");
  return *found;
}

// Pixels of one image, channels last.
template <class T>
struct Pixels {
  int height = 0, width = 0, channels = 0;
  std::vector<T> data;

  Pixels(int h, int w, int c)
      : height(h),
        width(w),
        channels(c),
        data(static_cast<std::size_t>(h) * static_cast<std::size_t>(w) * static_cast<std::size_t>(c)) {}
  T& at(int y, int x, int c) {
    return data[(static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
                 static_cast<std::size_t>(x)) *
                    static_cast<std::size_t>(channels) +
                static_cast<std::size_t>(c)];
  }
  const T& at(int y, int x, int c) const { return const_cast<Pixels*>(this)->at(y, x, c); }
  // Computes each element from its position.
  template <class Make>
  Pixels& fill(Make make) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        for (int c = 0; c < channels; ++c) at(y, x, c) = make(y, x, c);
      }
    }
    return *this;
  }
};

class Preparation {
 public:
  Preparation(const aclmdlAIPP& settings, const ImageSettings& own, int height, int width, int channels)
      : settings_(settings),
        own_(own),
        format_(format_of(settings.format)),
        height_(height),
        width_(width),
        channels_(channels),
        source_height_(side(settings.height, std::int64_t{height} - own.top - own.bottom)),
        source_width_(side(settings.width, std::int64_t{width} - own.left - own.right)) {
    require(!format_.semi_planar || (source_height_ % 2 == 0 && source_width_ % 2 == 0),
            "a YUV420SP image needs even sides");
    require(channels <= 4, "the model takes more than 4 channels");
  }

  std::size_t source_bytes() const {
    const std::size_t pixels =
        static_cast<std::size_t>(source_height_) * static_cast<std::size_t>(source_width_);
    return format_.semi_planar ? pixels * 3 / 2 : pixels * static_cast<std::size_t>(format_.channels);
  }

  Pixels<float> run(const std::byte* image) const {
    Pixels<int> pixels = colours(swapped(cropped(read(image))));
    require(pixels.channels >= channels_, "the image has " + std::to_string(pixels.channels) +
                                              " channels where the model takes " + std::to_string(channels_));
    Pixels<float> result(pixels.height, pixels.width, channels_);
    result.fill([&](int y, int x, int c) { return static_cast<float>(pixels.at(y, x, c)); });
    result = padded(normalised(resized(std::move(result))));
    require(result.height == height_ && result.width == width_,
            "it makes images of " + std::to_string(result.height) + "," + std::to_string(result.width) +
                " (height, width) where the model takes " + std::to_string(height_) + "," +
                std::to_string(width_));
    return result;
  }

 private:
  static int side(int given, std::int64_t otherwise) {
    const std::int64_t size = given ? given : otherwise;
    require(size > 0 && size <= kMaxSide, "the size of the images is not possible");
    return static_cast<int>(size);
  }

  Pixels<int> read(const std::byte* image) const {
    Pixels<int> pixels(source_height_, source_width_, format_.channels);
    const auto byte = [&](int place) { return std::to_integer<int>(image[place]); };
    if (!format_.semi_planar) {
      std::size_t place = 0;
      for (int& value : pixels.data) value = std::to_integer<int>(image[place++]);
      return pixels;
    }
    const int plane = source_height_ * source_width_;
    pixels.fill([&](int y, int x, int c) {
      if (c == 0) return byte(y * source_width_ + x);
      return byte(plane + y / 2 * source_width_ + x / 2 * 2 + c - 1);
    });
    return pixels;
  }

  Pixels<int> cropped(Pixels<int> pixels) const {
    if (!own_.crop) return pixels;
    const int height = own_.crop_height ? own_.crop_height : height_;
    const int width = own_.crop_width ? own_.crop_width : width_;
    const auto inside = [](int start, int size, int limit) {
      return start >= 0 && size > 0 && start <= limit && size <= limit - start;
    };
    require(inside(own_.crop_y, height, pixels.height) && inside(own_.crop_x, width, pixels.width),
            "the crop leaves the image");
    Pixels<int> result(height, width, pixels.channels);
    result.fill([&](int y, int x, int c) { return pixels.at(y + own_.crop_y, x + own_.crop_x, c); });
    return result;
  }

  // Moves the fourth channel from front to back; swaps red and blue, or U and V.
  Pixels<int> swapped(Pixels<int> pixels) const {
    std::array<int, 4> order{0, 1, 2, 3};
    if (settings_.swap_fourth && format_.leading) order = {1, 2, 3, 0};
    if (settings_.swap_colours && format_.channels >= 3) {
      const int shift = format_.leading && !settings_.swap_fourth ? 1 : 0;
      std::swap(order[static_cast<std::size_t>((format_.yuv ? 1 : 0) + shift)],
                order[static_cast<std::size_t>(2 + shift)]);
    }
    Pixels<int> result(pixels.height, pixels.width, pixels.channels);
    result.fill([&](int y, int x, int c) { return pixels.at(y, x, order[static_cast<std::size_t>(c)]); });
    return result;
  }

  // out = (matrix * (in - input_bias) >> 8) + output_bias, kept within a byte.
  Pixels<int> colours(Pixels<int> pixels) const {
    if (!settings_.convert) return pixels;
    require(format_.channels >= 3, "the conversion of colours needs three channels");
    Pixels<int> result(pixels.height, pixels.width, 3);
    result.fill([&](int y, int x, int c) {
      int total = 0;
      for (int i = 0; i < 3; ++i) {
        total += settings_.matrix[static_cast<std::size_t>(3 * c + i)] *
                 (pixels.at(y, x, i) - settings_.input_bias[static_cast<std::size_t>(i)]);
      }
      const int scaled = (total >> 8) + settings_.output_bias[static_cast<std::size_t>(c)];
      return std::clamp(scaled, 0, 255);
    });
    return result;
  }

  Pixels<float> resized(Pixels<float> pixels) const {
    if (!own_.resize) return pixels;
    const int height = own_.resize_height ? own_.resize_height : height_;
    const int width = own_.resize_width ? own_.resize_width : width_;
    require(height > 0 && width > 0 && height <= kMaxSide && width <= kMaxSide,
            "the size to scale to is not possible");
    return along(along(std::move(pixels), height, true), width, false);
  }

  // Linear interpolation along an axis, with pixels as areas.
  static Pixels<float> along(Pixels<float> pixels, int size, bool rows) {
    const int has = rows ? pixels.height : pixels.width;
    if (has == size) return pixels;
    Pixels<float> result(rows ? size : pixels.height, rows ? pixels.width : size, pixels.channels);
    return result.fill([&](int y, int x, int c) {
      const double place = std::clamp(((rows ? y : x) + 0.5) * has / size - 0.5, 0.0, has - 1.0);
      const int low = static_cast<int>(std::floor(place)), high = std::min(low + 1, has - 1);
      const auto weight = static_cast<float>(place - low);
      const float below = rows ? pixels.at(low, x, c) : pixels.at(y, low, c);
      const float above = rows ? pixels.at(high, x, c) : pixels.at(y, high, c);
      return below + (above - below) * weight;
    });
  }

  Pixels<float> normalised(Pixels<float> pixels) const {
    for (std::size_t i = 0; i < pixels.data.size(); ++i) {
      const std::size_t c = i % static_cast<std::size_t>(pixels.channels);
      pixels.data[i] = (pixels.data[i] - (own_.mean[c] + own_.minimum[c])) * own_.reciprocal[c];
    }
    return pixels;
  }

  Pixels<float> padded(Pixels<float> pixels) const {
    if (!own_.padding) return pixels;
    for (const int size : {own_.top, own_.bottom, own_.left, own_.right}) {
      require(size >= 0 && size <= kMaxSide, "the padding is not possible");
    }
    Pixels<float> result(pixels.height + own_.top + own_.bottom, pixels.width + own_.left + own_.right,
                         pixels.channels);
    for (int y = 0; y < pixels.height; ++y) {
      for (int x = 0; x < pixels.width; ++x) {
        for (int c = 0; c < pixels.channels; ++c)
          result.at(y + own_.top, x + own_.left, c) = pixels.at(y, x, c);
      }
    }
    return result;
  }

  const aclmdlAIPP& settings_;
  const ImageSettings& own_;
  const SourceFormat& format_;
  int height_, width_, channels_, source_height_, source_width_;
};

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

void store(std::byte* to, DType dtype, float value) {
  const float whole = std::isnan(value) ? 0.0f : std::clamp(std::nearbyint(value), 0.0f, 255.0f);
  switch (dtype) {
    case DType::Float32:
      return put(to, value);
    case DType::Float64:
      return put(to, static_cast<double>(value));
    case DType::Float16:
      return put(to, Float16(value).bits);
    case DType::BFloat16:
      return put(to, BFloat16(value).bits);
    case DType::Int8:
    case DType::UInt8:
      return put(to, static_cast<std::uint8_t>(whole));
    case DType::Int16:
    case DType::UInt16:
      return put(to, static_cast<std::uint16_t>(whole));
    case DType::Int32:
    case DType::UInt32:
      return put(to, static_cast<std::uint32_t>(whole));
    case DType::Int64:
    case DType::UInt64:
      return put(to, static_cast<std::uint64_t>(whole));
    case DType::Bool:
      return put(to, whole != 0);
  }
}

ImageSettings& image_of(aclmdlAIPP* settings, std::uint64_t index) {
  require(settings, "the settings are null");
  require(index < settings->batch, "the batch has " + std::to_string(settings->batch) +
                                       " images, there is no " + std::to_string(index));
  const auto first = settings->each.find(0);
  return settings->each.try_emplace(index, first == settings->each.end() ? ImageSettings() : first->second)
      .first->second;
}

}  // namespace

std::vector<std::byte> prepare_images(const aclmdlAIPP& settings, const Port& port, bool channels_last,
                                      Bytes images) {
  require(port.dims.size() == 4, "AIPP takes images of rank 4");
  const auto side = [&](std::size_t axis) {
    return static_cast<int>(std::min<std::int64_t>(port.dims[axis], kMaxSide));
  };
  const int height = side(channels_last ? 1 : 2), width = side(channels_last ? 2 : 3);
  const int channels = side(channels_last ? 3 : 1);
  const auto batch = static_cast<std::uint64_t>(port.dims[0]);
  require(settings.batch == batch, "AIPP is set for a batch of " + std::to_string(settings.batch) +
                                       ", the model has " + std::to_string(batch));
  std::vector<std::byte> result(port.bytes());
  std::byte* to = result.data();
  for (std::uint64_t i = 0; i < batch; ++i) {
    auto own = settings.each.find(i);
    if (own == settings.each.end()) own = settings.each.find(0);
    const ImageSettings image = own == settings.each.end() ? ImageSettings() : own->second;
    const Preparation preparation(settings, image, height, width, channels);
    require(images.size() >= preparation.source_bytes(),
            "the images of input '" + port.name + "' need " +
                std::to_string(preparation.source_bytes() * batch) + " bytes, its buffer has fewer",
            ACL_ERROR_MODEL_INPUT_NOT_MATCH);
    const Pixels<float> pixels = preparation.run(images.data());
    images = images.subspan(preparation.source_bytes());
    const std::size_t step = dtype_size(port.dtype);
    for (int outer = 0; outer < (channels_last ? 1 : channels); ++outer) {
      for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
          for (int c = 0; c < (channels_last ? channels : 1); ++c, to += step) {
            store(to, port.dtype, pixels.at(y, x, channels_last ? c : outer));
          }
        }
      }
    }
  }
  return result;
}

}  // namespace npu::acl

using namespace npu::acl;

namespace {

template <class Change>
aclError change_all(const char* function, aclmdlAIPP* settings, Change change) {
  return guard(function, [&] {
    require(settings, "the settings are null");
    change(*settings);
  });
}

template <class Change>
aclError change_image(const char* function, aclmdlAIPP* settings, uint64_t index, Change change) {
  return guard(function, [&] { change(image_of(settings, index)); });
}

}  // namespace

aclmdlAIPP* aclmdlCreateAIPP(uint64_t batchSize) {
  return guard_value("aclmdlCreateAIPP", static_cast<aclmdlAIPP*>(nullptr), [&] {
    require(batchSize > 0, "a batch has images");
    auto* settings = new aclmdlAIPP;
    settings->batch = batchSize;
    return settings;
  });
}

aclError aclmdlDestroyAIPP(const aclmdlAIPP* aippParmsSet) {
  return guard("aclmdlDestroyAIPP", [&] {
    require(aippParmsSet, "the settings are null");
    delete aippParmsSet;
  });
}

aclError aclmdlSetAIPPInputFormat(aclmdlAIPP* aippParmsSet, aclAippInputFormat inputFormat) {
  return change_all("aclmdlSetAIPPInputFormat", aippParmsSet,
                    [&](aclmdlAIPP& all) { all.format = format_of(inputFormat).code; });
}

aclError aclmdlSetAIPPCscParams(aclmdlAIPP* aippParmsSet, int8_t cscSwitch, int16_t cscMatrixR0C0,
                                int16_t cscMatrixR0C1, int16_t cscMatrixR0C2, int16_t cscMatrixR1C0,
                                int16_t cscMatrixR1C1, int16_t cscMatrixR1C2, int16_t cscMatrixR2C0,
                                int16_t cscMatrixR2C1, int16_t cscMatrixR2C2, uint8_t cscOutputBiasR0,
                                uint8_t cscOutputBiasR1, uint8_t cscOutputBiasR2, uint8_t cscInputBiasR0,
                                uint8_t cscInputBiasR1, uint8_t cscInputBiasR2) {
  return change_all("aclmdlSetAIPPCscParams", aippParmsSet, [&](aclmdlAIPP& all) {
    all.convert = cscSwitch != 0;
    all.matrix = {cscMatrixR0C0, cscMatrixR0C1, cscMatrixR0C2, cscMatrixR1C0, cscMatrixR1C1,
                  cscMatrixR1C2, cscMatrixR2C0, cscMatrixR2C1, cscMatrixR2C2};
    all.output_bias = {cscOutputBiasR0, cscOutputBiasR1, cscOutputBiasR2};
    all.input_bias = {cscInputBiasR0, cscInputBiasR1, cscInputBiasR2};
  });
}

aclError aclmdlSetAIPPRbuvSwapSwitch(aclmdlAIPP* aippParmsSet, int8_t rbuvSwapSwitch) {
  return change_all("aclmdlSetAIPPRbuvSwapSwitch", aippParmsSet,
                    [&](aclmdlAIPP& all) { all.swap_colours = rbuvSwapSwitch != 0; });
}

aclError aclmdlSetAIPPAxSwapSwitch(aclmdlAIPP* aippParmsSet, int8_t axSwapSwitch) {
  return change_all("aclmdlSetAIPPAxSwapSwitch", aippParmsSet,
                    [&](aclmdlAIPP& all) { all.swap_fourth = axSwapSwitch != 0; });
}

aclError aclmdlSetAIPPSrcImageSize(aclmdlAIPP* aippParmsSet, int32_t srcImageSizeW, int32_t srcImageSizeH) {
  return change_all("aclmdlSetAIPPSrcImageSize", aippParmsSet, [&](aclmdlAIPP& all) {
    all.width = srcImageSizeW;
    all.height = srcImageSizeH;
  });
}

aclError aclmdlSetAIPPScfParams(aclmdlAIPP* aippParmsSet, int8_t scfSwitch, int32_t, int32_t,
                                int32_t scfOutputSizeW, int32_t scfOutputSizeH, uint64_t batchIndex) {
  return change_image("aclmdlSetAIPPScfParams", aippParmsSet, batchIndex, [&](ImageSettings& image) {
    image.resize = scfSwitch != 0;
    image.resize_width = scfOutputSizeW;
    image.resize_height = scfOutputSizeH;
  });
}

aclError aclmdlSetAIPPCropParams(aclmdlAIPP* aippParmsSet, int8_t cropSwitch, int32_t cropStartPosW,
                                 int32_t cropStartPosH, int32_t cropSizeW, int32_t cropSizeH,
                                 uint64_t batchIndex) {
  return change_image("aclmdlSetAIPPCropParams", aippParmsSet, batchIndex, [&](ImageSettings& image) {
    image.crop = cropSwitch != 0;
    image.crop_x = cropStartPosW;
    image.crop_y = cropStartPosH;
    image.crop_width = cropSizeW;
    image.crop_height = cropSizeH;
  });
}

aclError aclmdlSetAIPPPaddingParams(aclmdlAIPP* aippParmsSet, int8_t paddingSwitch, int32_t paddingSizeTop,
                                    int32_t paddingSizeBottom, int32_t paddingSizeLeft,
                                    int32_t paddingSizeRight, uint64_t batchIndex) {
  return change_image("aclmdlSetAIPPPaddingParams", aippParmsSet, batchIndex, [&](ImageSettings& image) {
    image.padding = paddingSwitch != 0;
    image.top = paddingSizeTop;
    image.bottom = paddingSizeBottom;
    image.left = paddingSizeLeft;
    image.right = paddingSizeRight;
  });
}

aclError aclmdlSetAIPPDtcPixelMean(aclmdlAIPP* aippParmsSet, int16_t dtcPixelMeanChn0,
                                   int16_t dtcPixelMeanChn1, int16_t dtcPixelMeanChn2,
                                   int16_t dtcPixelMeanChn3, uint64_t batchIndex) {
  return change_image("aclmdlSetAIPPDtcPixelMean", aippParmsSet, batchIndex, [&](ImageSettings& image) {
    image.mean = {static_cast<float>(dtcPixelMeanChn0), static_cast<float>(dtcPixelMeanChn1),
                  static_cast<float>(dtcPixelMeanChn2), static_cast<float>(dtcPixelMeanChn3)};
  });
}

aclError aclmdlSetAIPPDtcPixelMin(aclmdlAIPP* aippParmsSet, float dtcPixelMinChn0, float dtcPixelMinChn1,
                                  float dtcPixelMinChn2, float dtcPixelMinChn3, uint64_t batchIndex) {
  return change_image("aclmdlSetAIPPDtcPixelMin", aippParmsSet, batchIndex, [&](ImageSettings& image) {
    image.minimum = {dtcPixelMinChn0, dtcPixelMinChn1, dtcPixelMinChn2, dtcPixelMinChn3};
  });
}

aclError aclmdlSetAIPPPixelVarReci(aclmdlAIPP* aippParmsSet, float dtcPixelVarReciChn0,
                                   float dtcPixelVarReciChn1, float dtcPixelVarReciChn2,
                                   float dtcPixelVarReciChn3, uint64_t batchIndex) {
  return change_image("aclmdlSetAIPPPixelVarReci", aippParmsSet, batchIndex, [&](ImageSettings& image) {
    image.reciprocal = {dtcPixelVarReciChn0, dtcPixelVarReciChn1, dtcPixelVarReciChn2, dtcPixelVarReciChn3};
  });
}
