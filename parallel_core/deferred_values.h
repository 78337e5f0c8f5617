// Parameters whose initial values come when they are touched: for models that no rank can hold as a
// whole.
#pragma once

#include <functional>
#include <memory>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// While an object lives, initial_value() gives tensors without memory on this thread. The first
/// touch of one makes its values, which stay as long as the op runs that touches them, and go again
/// when two others have been touched, unless they have been changed in place. Values are the same
/// at each touch. So who goes through the parameters one after the other, as placing them in
/// buckets does, never needs memory for all of them.
class DeferInitialValues {
 public:
  enum class Values : uint8_t {
    kInitial,
    kZeros,  ///< for weights that are loaded later, when ranks have their pieces
  };
  explicit DeferInitialValues(Values values);
  DeferInitialValues(const DeferInitialValues&) = delete;
  DeferInitialValues& operator=(const DeferInitialValues&) = delete;
  ~DeferInitialValues();
};

namespace internal {

/// A contiguous float32 tensor whose memory `make`, called at each first touch, gives; undefined
/// where nothing is deferred.
Tensor deferred(const Shape& shape, std::function<Tensor()> make);

}  // namespace internal
}  // namespace tapestry
