/* tensor.h: Tensor and DataType, under upstream's names. */
#ifndef CHIPCOMM_COMPAT_TENSOR_H
#define CHIPCOMM_COMPAT_TENSOR_H

#include "../chip_tensor.h"

using chip::DataType;
using chip::Tensor;
using ChipTensor = chip::Tensor;

namespace simpler {
namespace tmr {
using chip::Tensor;
}
namespace hbg {
using chip::Tensor;
}
}  // namespace simpler

#endif
