/*
 * comm_collectives_fault.h: why a group of comm_collectives.h failed, for people. Included by it; include that one.
 *
 * A rank that gives up leaves in its window what it found, as collectives/src/fault.rs does: what kind of thing, two
 * ranks, the number of the call, two texts. Calls are put in the words of collectives/src/request.rs.
 */
#ifndef CHIPCOMM_COMM_COLLECTIVES_FAULT_H
#define CHIPCOMM_COMM_COLLECTIVES_FAULT_H

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace comm_detail {

constexpr uint64_t kFaultWords = 44, kFaultHead = 4, kFaultText = (kFaultWords - kFaultHead) / 2 * 8;

/* A text that ends where its room does. */
template <size_t kRoom>
struct Text {
    char bytes[kRoom] = {};
    size_t used = 0;

    __attribute__((format(printf, 2, 3))) void add(const char *format, ...) {
        va_list values;
        va_start(values, format);
        const int wanted = std::vsnprintf(bytes + used, kRoom - used, format, values);
        va_end(values);
        const size_t more = wanted > 0 ? static_cast<size_t>(wanted) : 0;
        used = more < kRoom - used ? used + more : kRoom - 1;
    }
};

template <size_t kCount>
inline const char *name_of(const char *const (&names)[kCount], uint64_t code, const char *other) {
    return code < kCount ? names[code] : other;
}

/* A call from its record: hash, head, count, step, and for a plan three words more. A peer may have written it. */
inline Text<kFaultText> call_in_words(const uint64_t (&record)[7]) {
    constexpr uint64_t kPlan = 0x40;
    static const char *const kinds[] = {nullptr,      "barrier",        "all_reduce",       "all_gather",
                                        "all_gather_v", "reduce_scatter", "reduce_scatter_v", "broadcast",
                                        "reduce",     "all_to_all",     "all_to_all_v",     "gather",
                                        "scatter"};
    static const char *const types[] = {"f32", "f16", "i32", "i16", "i8", "u8", "bf16", "i64", "u64", "u16", "u32"};
    static const char *const ops[] = {"sum",        "prod",        "max",         "min",        "avg",        "bitwise and",
                                      "bitwise or", "bitwise xor", "logical and", "logical or", "logical xor"};
    const uint64_t head = record[1], kind = head & 0xff, type_code = head >> 8 & 0xff;
    const char *name = name_of(kinds, kind, nullptr), *op = name_of(ops, head >> 16 & 0xff, "");
    const char *type = name_of(types, type_code, type_code == 32 ? "f64" : type_code == 33 ? "bool" : "?");
    const auto count = static_cast<unsigned long long>(record[2]), root = static_cast<unsigned long long>(head >> 32);
    const char *space = *op == '\0' ? "" : " ";
    Text<kFaultText> text;
    if (kind == kPlan) {
        Text<17> schedule;
        for (uint64_t at = 0; at < 16; ++at) {
            const auto symbol = static_cast<char>(record[5 + at / 8] >> 8 * (at % 8));
            if (symbol > ' ' && symbol <= '~') {
                schedule.add("%c", symbol);
            }
        }
        text.add("plan %016llx of the schedule %s %s%s%s \u00d7 %llu", static_cast<unsigned long long>(record[4]),
                 schedule.bytes, type, space, op, count);
        return text;
    }
    if (name == nullptr) {
        text.add("an unknown call 0x%x", static_cast<unsigned>(kind));
        return text;
    }
    text.add("%s", name);
    if (kind == 1) {
        return text;
    }
    text.add(" %s%s%s", type, space, op);
    switch (kind) {
        case 4:
        case 6: text.add(" with counts of hash %016llx", count); break;
        case 10: break;
        default: text.add(" \u00d7 %llu", count); break;
    }
    switch (kind) {
        case 7:
        case 12: text.add(" from %llu", root); break;
        case 8:
        case 11: text.add(" to %llu", root); break;
        default: break;
    }
    return text;
}

/* What a rank leaves in its window when it gives up. */
struct Fault {
    enum Kind : uint64_t { kNothing = 0, kMismatch = 1, kTransfer = 2 };

    uint64_t words[kFaultWords] = {};

    /* Two ranks made different calls, the lower one first. */
    static Fault mismatch(uint64_t one, uint64_t other, uint64_t number, const char *first, const char *second) {
        Fault fault;
        fault.words[0] = kMismatch;
        fault.words[1] = one;
        fault.words[2] = other;
        fault.words[3] = number;
        std::memcpy(fault.text(0), first, std::strlen(first));
        std::memcpy(fault.text(1), second, std::strlen(second));
        return fault;
    }

    char *text(uint64_t side) { return reinterpret_cast<char *>(words + kFaultHead) + side * kFaultText; }
    bool is_known() const { return words[0] == kMismatch || words[0] == kTransfer; }

    /* As the errors of the crate collectives say it. */
    void tell(Text<512> &to) {
        const auto one = static_cast<unsigned>(words[1]), other = static_cast<unsigned>(words[2]);
        const auto number = static_cast<unsigned long long>(words[3]);
        const int most = static_cast<int>(kFaultText);
        if (words[0] == kTransfer) {
            to.add("rank %u sends %.*s to rank %u, which expects %.*s; let both sides say the same", one, most, text(0), other,
                   most, text(1));
        } else {
            to.add("ranks made different calls: rank %u: %.*s, call %llu; rank %u: %.*s, call %llu; "
                   "let every rank make the same calls in the same order",
                   one, most, text(0), number, other, most, text(1), number);
        }
    }
};
static_assert(sizeof(Fault) == kFaultWords * 8, "Fault: size");

}  // namespace comm_detail

#endif
