// Arithmetic of lengths that cannot overflow, for checks before a loop.
#ifndef MAGNITUDE_KERNELS_CHECKS_H_
#define MAGNITUDE_KERNELS_CHECKS_H_

#include <stdint.h>

namespace magnitude {
namespace {

// A length in elements from sizes that are not negative; never wraps.
class Length {
 public:
  explicit Length(int64_t value) : value_(value), fits_(value >= 0) {}

  Length times(int64_t factor) const {
    Length result(*this);
    result.fits_ = fits_ && factor >= 0 && !__builtin_mul_overflow(value_, factor, &result.value_);
    return result;
  }
  Length plus(const Length& other) const {
    Length result(*this);
    result.fits_ = fits_ && other.fits_ && !__builtin_add_overflow(value_, other.value_, &result.value_);
    return result;
  }
  bool within(int64_t limit) const { return fits_ && value_ <= limit; }

 private:
  int64_t value_;
  bool fits_;
};

// How far `rows` rows of `width` elements reach that begin `stride` elements apart; nothing for no rows.
inline Length span(int64_t rows, int64_t stride, const Length& width) {
  return rows == 0 ? Length(0) : Length(rows - 1).times(stride).plus(width);
}

inline bool aligned_for_float(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % alignof(float) == 0;
}

}  // namespace
}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_CHECKS_H_
