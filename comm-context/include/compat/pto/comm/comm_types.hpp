/* pto/comm/comm_types.hpp: signals in a window, under upstream's names. */
#ifndef CHIPCOMM_COMPAT_PTO_COMM_COMM_TYPES_HPP
#define CHIPCOMM_COMPAT_PTO_COMM_COMM_TYPES_HPP

#include <cstdint>

namespace pto {
namespace comm {

/* What TNOTIFY does with its value. */
enum class NotifyOp { AtomicAdd, Set };

/* How TWAIT compares the signal with its value. */
enum class WaitCmp { EQ, NE, GT, GE, LT, LE };

/* A word of 32 bits in a window, of this rank or of another one. */
class Signal {
  public:
    explicit Signal(int32_t *word) : word_(word) {}
    explicit Signal(uint32_t *word) : word_(reinterpret_cast<int32_t *>(word)) {}
    int32_t *data() const { return word_; }

  private:
    int32_t *word_;
};

}  // namespace comm
}  // namespace pto

#endif
