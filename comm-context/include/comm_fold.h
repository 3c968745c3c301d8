/*
 * comm_fold.h: combines the elements of up to 64 ranks in one pass, in the order of the ranks. C++17.
 *
 * Used by comm_collectives.h. The same bits as the Rust crate collectives, on every processor: half precision is
 * combined in float and rounded once, integers wrap, NaN wins in Max and Min, and a result that is NaN is the one
 * NaN of its type. Do not compile with -ffast-math.
 */
#ifndef CHIPCOMM_COMM_FOLD_H
#define CHIPCOMM_COMM_FOLD_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* How elements are combined. */
enum class CommOp : uint8_t {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    Avg = 4,    /* floating point only */
    BitAnd = 5, /* this and those below: integers only */
    BitOr = 6,
    BitXor = 7,
    LogicalAnd = 8,
    LogicalOr = 9,
    LogicalXor = 10,
};

/* IEEE half precision and bfloat16, as bits. */
struct CommHalf {
    uint16_t bits;
};
struct CommBrain {
    uint16_t bits;
};

namespace comm_detail {

#define COMM_INLINE inline __attribute__((always_inline))

template <typename T>
COMM_INLINE T bits_as(uint32_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

COMM_INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float widen(CommBrain value) { return bits_as<float>(uint32_t{value.bits} << 16); }

inline void narrow(float value, CommBrain *to) {
    const uint32_t bits = bits_of(value);
    to->bits = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float widen(CommHalf value) {
    const uint32_t sign = uint32_t{value.bits} >> 15 << 31, rest = value.bits & 0x7fffu;
    if (rest >= 0x7c00) { /* infinity, or NaN, which is made quiet */
        return bits_as<float>(sign | 0x7f800000u | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000u : 0));
    }
    /* Exact, also for subnormal numbers: a multiplication by a power of two. */
    return bits_as<float>(sign | bits_of(bits_as<float>(rest << 13) * bits_as<float>(0x77800000u)));
}

/* To the nearest, ties to even. */
inline void narrow(float value, CommHalf *to) {
    const uint32_t bits = bits_of(value), rest = bits & 0x7fffffffu;
    uint32_t half;
    if (rest > 0x7f800000u) {
        half = 0x7e00;
    } else if (rest >= 0x477ff000u) { /* rounds to 65536 or more */
        half = 0x7c00;
    } else if (rest < 0x38800000u) { /* subnormal: the addition rounds at the last bit of the result */
        half = bits_of(bits_as<float>(rest) + 0.5f) - bits_of(0.5f);
    } else {
        half = (rest + 0xfff + (rest >> 13 & 1) - 0x38000000u) >> 13;
    }
    to->bits = static_cast<uint16_t>(bits >> 31 << 15 | half);
}

/* In what elements are combined. */
template <typename T>
struct Accumulator {
    using type = T;
};
template <>
struct Accumulator<CommHalf> {
    using type = float;
};
template <>
struct Accumulator<CommBrain> {
    using type = float;
};

/* A vector of W bytes. */
template <typename A, int W>
struct Vector {
    typedef A type __attribute__((vector_size(W)));
};


/* `yes` where the mask is all ones, else `no`; bit by bit, so through vectors of integers. */
template <typename A, typename V, typename M>
COMM_INLINE void pick(V &out, const M &mask, const V &yes, const V &no) {
    out = (V)(((M)yes & mask) | ((M)no & ~mask));
}

template <typename A, typename V>
COMM_INLINE void one_nan(V &value) {
    if constexpr (std::is_floating_point<A>::value) {
        const V nan = V{} + static_cast<A>(__builtin_nan(""));
        pick<A>(value, value == value, V(value), nan);
    }
}

/* The operations, on vectors V of A: combine with the next rank, and finish after the last. */
struct Finish {
    template <typename A, typename V>
    static COMM_INLINE void finish(V &acc, uint32_t) {
        one_nan<A>(acc);
    }
};
struct FoldSum : Finish {
    template <typename A, typename V>
    static COMM_INLINE void fold(V &acc, const V &next) {
        acc = acc + next;
    }
};
struct FoldProd : Finish {
    template <typename A, typename V>
    static COMM_INLINE void fold(V &acc, const V &next) {
        acc = acc * next;
    }
};
struct FoldMax : Finish {
    template <typename A, typename V>
    static COMM_INLINE void fold(V &acc, const V &next) {
        pick<A>(acc, ~(next <= acc) & (acc == acc), next, V(acc));
    }
};
struct FoldMin : Finish {
    template <typename A, typename V>
    static COMM_INLINE void fold(V &acc, const V &next) {
        pick<A>(acc, ~(next >= acc) & (acc == acc), next, V(acc));
    }
};
struct FoldAvg : FoldSum {
    template <typename A, typename V>
    static COMM_INLINE void finish(V &acc, uint32_t ranks) {
        acc = acc / static_cast<A>(ranks);
        one_nan<A>(acc);
    }
};
struct FoldAnd : Finish {
    template <typename A, typename V>
    static COMM_INLINE void fold(V &acc, const V &next) {
        acc = acc & next;
    }
};
struct FoldOr : Finish {
    template <typename A, typename V>
    static COMM_INLINE void fold(V &acc, const V &next) {
        acc = acc | next;
    }
};
struct FoldXor : Finish {
    template <typename A, typename V>
    static COMM_INLINE void fold(V &acc, const V &next) {
        acc = acc ^ next;
    }
};
struct Logical {
    template <typename A, typename V>
    static COMM_INLINE void finish(V &acc, uint32_t) {
        acc = (V)(acc != 0) & 1;
    }
};
struct FoldLogicalAnd : Logical {
    template <typename A, typename V>
    static COMM_INLINE void fold(V &acc, const V &next) {
        acc = (V)((acc != 0) & (next != 0));
    }
};
struct FoldLogicalOr : Logical {
    template <typename A, typename V>
    static COMM_INLINE void fold(V &acc, const V &next) {
        acc = acc | next;
    }
};
struct FoldLogicalXor : Logical {
    template <typename A, typename V>
    static COMM_INLINE void fold(V &acc, const V &next) {
        acc = (V)((acc != 0) ^ (next != 0));
    }
};

/* Elements of `from` as a vector; `count` of them, the others 0. */
template <typename T, typename A, typename V>
COMM_INLINE void load_some(V &out, const T *from, size_t count) {
    if constexpr (std::is_same<T, A>::value) {
        out = V{};
        std::memcpy(&out, from, count * sizeof(T));
    } else {
        A wide[sizeof(V) / sizeof(A)] = {};
        for (size_t i = 0; i < count; ++i) {
            wide[i] = widen(from[i]);
        }
        std::memcpy(&out, wide, sizeof out);
    }
}

template <typename T, typename A, typename V>
COMM_INLINE void store_some(const V &value, T *to, size_t count) {
    if constexpr (std::is_same<T, A>::value) {
        std::memcpy(to, &value, count * sizeof(T));
    } else {
        A wide[sizeof(V) / sizeof(A)];
        std::memcpy(wide, &value, sizeof value);
        for (size_t i = 0; i < count; ++i) {
            narrow(wide[i], &to[i]);
        }
    }
}

/* The code of every build: vectors of W bytes, K at a time, which stay in registers from the first rank to the last. A
 * target may be a source, element for element: all sources are loaded before any target is stored. */
template <typename T, typename Op, int W, int K>
COMM_INLINE void fold_body(const T *const *from, uint32_t sources, T *const *to, uint32_t targets, size_t count) {
    using A = typename Accumulator<T>::type;
    using V = typename Vector<A, W>::type;
    constexpr size_t kLanes = W / sizeof(A);
    size_t at = 0;
    for (; at + K * kLanes <= count; at += K * kLanes) {
        V acc[K];
        for (int k = 0; k < K; ++k) {
            load_some<T, A, V>(acc[k], from[0] + at + k * kLanes, kLanes);
        }
        for (uint32_t rank = 1; rank < sources; ++rank) {
            const T *source = from[rank] + at;
            for (int k = 0; k < K; ++k) {
                V next;
                load_some<T, A, V>(next, source + k * kLanes, kLanes);
                Op::template fold<A, V>(acc[k], next);
            }
        }
        for (int k = 0; k < K; ++k) {
            Op::template finish<A, V>(acc[k], sources);
        }
        for (uint32_t target = 0; target < targets; ++target) {
            for (int k = 0; k < K; ++k) {
                store_some<T, A, V>(acc[k], to[target] + at + k * kLanes, kLanes);
            }
        }
    }
    for (; at < count; at += kLanes) {
        const size_t left = count - at < kLanes ? count - at : kLanes;
        V acc, next;
        load_some<T, A, V>(acc, from[0] + at, left);
        for (uint32_t rank = 1; rank < sources; ++rank) {
            load_some<T, A, V>(next, from[rank] + at, left);
            Op::template fold<A, V>(acc, next);
        }
        Op::template finish<A, V>(acc, sources);
        for (uint32_t target = 0; target < targets; ++target) {
            store_some<T, A, V>(acc, to[target] + at, left);
        }
    }
}

/* Plain vector moves: a library's copy goes past the caches where it takes a copy for a large one. */
template <int W>
COMM_INLINE void copy_body(unsigned char *to, const unsigned char *from, size_t bytes) {
    using V = typename Vector<uint64_t, W>::type;
    constexpr size_t kBlock = 256;
    size_t at = 0;
    for (; at + kBlock <= bytes; at += kBlock) {
        V block[kBlock / W];
        std::memcpy(block, from + at, kBlock);
        std::memcpy(to + at, block, kBlock);
    }
    if (at < bytes) {
        std::memcpy(to + at, from + at, bytes - at);
    }
}

template <typename T, typename Op>
void fold_baseline(const T *const *from, uint32_t sources, T *const *to, uint32_t targets, size_t count) {
    fold_body<T, Op, 16, 8>(from, sources, to, targets, count);
}

inline void copy_baseline(unsigned char *to, const unsigned char *from, size_t bytes) { copy_body<16>(to, from, bytes); }

#if defined(__x86_64__)
#define COMM_AVX2 __attribute__((target("avx2")))
#define COMM_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

template <typename T, typename Op>
COMM_AVX2 void fold_avx2(const T *const *from, uint32_t sources, T *const *to, uint32_t targets, size_t count) {
    fold_body<T, Op, 32, 8>(from, sources, to, targets, count);
}

template <typename T, typename Op>
COMM_AVX512 void fold_avx512(const T *const *from, uint32_t sources, T *const *to, uint32_t targets, size_t count) {
    fold_body<T, Op, 64, 4>(from, sources, to, targets, count);
}

COMM_AVX2 inline void copy_avx2(unsigned char *to, const unsigned char *from, size_t bytes) {
    copy_body<32>(to, from, bytes);
}

/* Which build this processor runs: 0 for all, 1 with AVX2, 2 with AVX-512. */
inline int build() {
    static const int best = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                                ? 2
                                : __builtin_cpu_supports("avx2") ? 1 : 0;
    return best;
}
#endif

template <typename T, typename Op>
inline void fold_as(const T *const *from, uint32_t sources, T *const *to, uint32_t targets, size_t count) {
#if defined(__x86_64__)
    switch (build()) {
        case 2:
            return fold_avx512<T, Op>(from, sources, to, targets, count);
        case 1:
            return fold_avx2<T, Op>(from, sources, to, targets, count);
        default:
            break;
    }
#endif
    fold_baseline<T, Op>(from, sources, to, targets, count);
}

/* Whether the processor says that it moves even short strings fast: such an instruction does not fetch the lines that it
 * overwrites from the cache of who read them last. */
inline bool has_fast_strings() {
#if defined(__x86_64__)
    static const bool fast = [] {
        constexpr unsigned kFastShortStrings = 1 << 4;
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kFastShortStrings) != 0;
    }();
    return fast;
#else
    return false;
#endif
}

/* Whether a rank that alone reads lines does well to have them as its own; collectives/src/kernels/processor.rs has the same. */
inline bool readers_take_lines() {
#if defined(__x86_64__)
    static const bool take = [] {
        constexpr unsigned kAuth = 0x68747541, kCamd = 0x444d4163; /* "Auth" and "cAMD" */
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        return __get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0 && ebx == kAuth && ecx == kCamd;
    }();
    return take;
#else
    return false;
#endif
}

/* Copies of at least `strings_from` bytes are one string instruction, where that is fast. */
inline void copy_bytes(void *to, const void *from, size_t bytes, size_t strings_from) {
    auto *target = static_cast<unsigned char *>(to);
    const auto *source = static_cast<const unsigned char *>(from);
#if defined(__x86_64__)
    if (bytes >= strings_from && has_fast_strings()) {
        __asm__ volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(bytes) : : "memory");
        return;
    }
    if (build() > 0) {
        return copy_avx2(target, source, bytes);
    }
#endif
    copy_baseline(target, source, bytes);
}

/* Combines `count` elements of each source, and writes the result to each target. False if the operation is not
 * defined for the type. */
template <typename T>
inline bool fold(CommOp op, const T *const *from, uint32_t sources, T *const *to, uint32_t targets, size_t count) {
    if constexpr (std::is_integral<T>::value) {
        /* What does not depend on the sign is done without one: it wraps. */
        using U = typename std::make_unsigned<T>::type;
        const auto *const *u_from = reinterpret_cast<const U *const *>(from);
        auto *const *u_to = reinterpret_cast<U *const *>(to);
        switch (op) {
            case CommOp::Sum: fold_as<U, FoldSum>(u_from, sources, u_to, targets, count); return true;
            case CommOp::Prod: fold_as<U, FoldProd>(u_from, sources, u_to, targets, count); return true;
            case CommOp::Max: fold_as<T, FoldMax>(from, sources, to, targets, count); return true;
            case CommOp::Min: fold_as<T, FoldMin>(from, sources, to, targets, count); return true;
            case CommOp::BitAnd: fold_as<U, FoldAnd>(u_from, sources, u_to, targets, count); return true;
            case CommOp::BitOr: fold_as<U, FoldOr>(u_from, sources, u_to, targets, count); return true;
            case CommOp::BitXor: fold_as<U, FoldXor>(u_from, sources, u_to, targets, count); return true;
            case CommOp::LogicalAnd: fold_as<U, FoldLogicalAnd>(u_from, sources, u_to, targets, count); return true;
            case CommOp::LogicalOr: fold_as<U, FoldLogicalOr>(u_from, sources, u_to, targets, count); return true;
            case CommOp::LogicalXor: fold_as<U, FoldLogicalXor>(u_from, sources, u_to, targets, count); return true;
            default: return false;
        }
    } else {
        switch (op) {
            case CommOp::Sum: fold_as<T, FoldSum>(from, sources, to, targets, count); return true;
            case CommOp::Prod: fold_as<T, FoldProd>(from, sources, to, targets, count); return true;
            case CommOp::Max: fold_as<T, FoldMax>(from, sources, to, targets, count); return true;
            case CommOp::Min: fold_as<T, FoldMin>(from, sources, to, targets, count); return true;
            case CommOp::Avg: fold_as<T, FoldAvg>(from, sources, to, targets, count); return true;
            default: return false;
        }
    }
}

#undef COMM_INLINE
#if defined(__x86_64__)
#undef COMM_AVX2
#undef COMM_AVX512
#endif

}  // namespace comm_detail

#endif
