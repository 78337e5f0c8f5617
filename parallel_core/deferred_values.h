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

/// Elements that for_start_values() makes at a time: 64 MiB.
inline constexpr int64_t kStartPiece = int64_t{16} << 20;

/// Calls use(first, values), one after the other, with all elements of `value`: float32 [count]
/// from element `first` on. Where they are deferred on this thread, have no memory now and
/// initial_value() can make them in pieces, those are of about kStartPiece elements, a multiple of
/// `unit`, and `value` gets no memory. Otherwise it is one piece.
void for_start_values(const Tensor& value,
                      int64_t unit,
                      const std::function<void(int64_t first, const Tensor& values)>& use);

namespace internal {

/// Elements [first, first + count) of start values, as float32 [count].
using StartRange = std::function<Tensor(int64_t first, int64_t count)>;

/// A contiguous float32 tensor whose memory `make`, called at each first touch, gives; undefined
/// where nothing is deferred. `range` may be null, if they are not to be had in pieces.
Tensor deferred(const Shape& shape, std::function<Tensor()> make, StartRange range);

}  // namespace internal
}  // namespace tapestry
