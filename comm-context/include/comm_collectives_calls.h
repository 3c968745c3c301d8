/*
 * comm_collectives_calls.h: one call of comm_collectives.h. Included by it; include that one.
 *
 * A call is a sequence of steps that all ranks number alike; collectives/src/call.rs, plan.rs and moves.rs have the same.
 */
#include "comm_collectives.h"

#ifndef CHIPCOMM_COMM_COLLECTIVES_CALLS_H
#define CHIPCOMM_COMM_COLLECTIVES_CALLS_H

namespace comm_detail {

/* The shape of an algorithm: a copy; a payload in the line; one step for each piece; two, for slices of each piece. */
enum class Shape { Alone, Inline, Pieces, Slices };

/* Where the data of an all-reduce goes through: not known yet, the halves, the halves one step later, from window to
 * window. */
enum class Route { Undecided, Staged, StagedLate, Windows };

struct Span {
    uint64_t start, end;
    uint64_t count() const { return end - start; }
};

constexpr uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

template <typename T>
class Call {
  public:
    Call(CommGroup &group, Kind kind, const T *in, T *out, size_t count, int op, uint32_t root)
        : group_(group), state_(*group.state_), kind_(kind), in_(in), out_(out), count_(count), op_(op), root_(root),
          n_(group.ranks()), me_(group.me_) {
        static_assert(type_code<T>() != 255, "not a type of elements");
    }

    bool run() {
        if (!group_.open_) {
            return false;
        }
        if (root_ >= n_ || !applies() || !has_sound_buffers()) {
            return group_.fail(CommGroup::kInvalid);
        }
        plan();
        if (shape_ == Shape::Alone) {
            begin();
            return alone();
        }
        own_places();
        route_ = places_ == 2 ? Route::Undecided : Route::Staged;
        begin();
        base_ = state_.step;
        first_piece_ = state_.piece;
        for (uint64_t at = 0; at < steps(); ++at) {
            const bool sink = is_sink(at);
            if (!(sink ? read(at) && write(at) : write(at) && read(at))) {
                return false;
            }
        }
        if (!drain()) {
            return false;
        }
        state_.step = base_ + steps();
        state_.piece = first_piece_ + (route_ == Route::Windows ? 0 : pieces_);
        uint64_t lowest = ~uint64_t{0};
        for (uint32_t rank = 0; rank < n_; ++rank) {
            lowest = rank == me_ ? lowest : least(lowest, group_.bounds_[rank]);
        }
        state_.least = lowest;
        group_.notify();
        return true;
    }

  private:
    bool reduces() const { return kind_ == Kind::AllReduce || kind_ == Kind::ReduceScatter || kind_ == Kind::Reduce; }
    bool has_blocks() const {
        return kind_ == Kind::ReduceScatter || kind_ == Kind::AllToAll || kind_ == Kind::Scatter;
    }
    bool applies() const {
        return !reduces() || op_ < 4 || (std::is_integral<T>::value ? op_ > 4 && op_ <= 10 : op_ == 4);
    }
    bool is_root() const { return me_ == root_; }
    /* Buffers that memory can have, that are there, and that are apart or in place; collectives/src/raw.rs checks the same. */
    bool has_sound_buffers() const {
        if (count_ > static_cast<size_t>(PTRDIFF_MAX) / sizeof(T) / n_) {
            return false;
        }
        const uint64_t one = count_ * sizeof(T), all = one * n_, own = me_ * one;
        const bool spreads = kind_ == Kind::Broadcast || kind_ == Kind::Scatter;
        const bool collects = kind_ == Kind::Reduce || kind_ == Kind::Gather;
        const bool gets_all = kind_ == Kind::AllGather || kind_ == Kind::AllToAll || kind_ == Kind::Gather;
        const uint64_t in = kind_ == Kind::Barrier || (spreads && !is_root()) ? 0 : has_blocks() ? all : one;
        const uint64_t out = kind_ == Kind::Barrier || (collects && !is_root()) ? 0 : gets_all ? all : one;
        const auto from = reinterpret_cast<uintptr_t>(in_), to = reinterpret_cast<uintptr_t>(out_);
        if ((in > 0 && from == 0) || (out > 0 && to == 0)) {
            return false;
        }
        switch (kind_) {
            case Kind::AllReduce:
            case Kind::Broadcast:
            case Kind::Reduce:
                if (from == to) return true;
                break;
            case Kind::AllGather:
            case Kind::Gather:
                if (from == to + own) return true;
                break;
            case Kind::ReduceScatter:
            case Kind::Scatter:
                if (to == from + own) return true;
                break;
            default: break;
        }
        return in == 0 || out == 0 || from + in <= to || to + out <= from;
    }

    void plan() {
        const uint64_t size = sizeof(T), bytes = count_ * size;
        const Table &table = group_.table_;
        block_ = count_;
        if (n_ == 1) {
            shape_ = Shape::Alone;
            return;
        }
        uint64_t staged = bytes;
        if (kind_ == Kind::Barrier || (has_blocks() ? bytes * n_ : bytes) <= kInline) {
            shape_ = Shape::Inline;
            return;
        }
        shape_ = Shape::Pieces;
        if (has_blocks()) {
            staged = bytes * n_;
        } else if (kind_ == Kind::AllReduce || kind_ == Kind::Reduce) {
            const uint64_t reads = kind_ == Kind::AllReduce ? table.one_shot_reads : table.reduce_reads;
            const uint64_t pair = kind_ == Kind::AllReduce ? table.pair_one_shot : kAny;
            const bool one_shot = n_ == 2 ? pair == kAny || bytes <= pair : reads == kAny || bytes * (n_ - 1) <= reads;
            shape_ = one_shot ? Shape::Pieces : Shape::Slices;
        }
        const bool rooted = kind_ == Kind::Broadcast || kind_ == Kind::Scatter || kind_ == Kind::Gather;
        const uint64_t half = group_.layout_.half;
        const bool cores = group_.core_per_rank_;
        const uint64_t piece = rooted && cores && staged > table.rooted_piece ? table.rooted_piece
                               : staged <= least(table.pieces_from, half)     ? staged
                               : cores                                        ? least(table.piece, half)
                                                                              : half;
        const uint64_t block = staged == bytes ? piece / size : piece / n_ / size;
        const uint64_t most = count_ > 0 ? count_ : 1;
        block_ = block < 1 ? 1 : least(block, most);
        pieces_ = (count_ + block_ - 1) / block_;
        pieces_ = pieces_ < 1 ? 1 : pieces_;
        if (kind_ == Kind::AllReduce) {
            places_ = bytes >= table.window_min ? 2 : 0;
        } else {
            places_ = staged >= table.by_reference_min ? 1 : 0;
        }
    }

    void own_places() {
        const bool reads = (kind_ != Kind::Broadcast && kind_ != Kind::Scatter) || is_root();
        if (places_ == 0 || !reads) {
            return;
        }
        const uint64_t elements = has_blocks() ? count_ * n_ : count_;
        own_[0] = group_.place(in_, elements * sizeof(T));
        own_[1] = kind_ == Kind::AllReduce ? group_.place(out_, elements * sizeof(T)) : 0;
    }

    /* Numbers the call and writes it down, before any step of it. */
    void begin() {
        const uint64_t head = static_cast<uint64_t>(kind_) | uint64_t{code()} << 8 | static_cast<uint64_t>(op_) << 16 |
                              uint64_t{root_} << 32;
        state_.call += 1;
        state_.chain = mix(mix(state_.chain, head), count_) & 0xffffffff;
        chain_ = static_cast<uint32_t>(state_.chain);
        uint64_t *record = group_.word(me_, kRecordsAt + state_.call % kRecords * kRecordBytes);
        const uint64_t words[] = {state_.chain, head, count_, state_.step, 0, 0, 0};
        for (int at = 0; at < 7; ++at) {
            /* Relaxed: published by the store of the number. */
            __atomic_store_n(record + 1 + at, words[at], __ATOMIC_RELAXED);
        }
        CommGroup::store(record, state_.call);
    }
    uint8_t code() const { return kind_ == Kind::Barrier ? uint8_t{TENSOR_UINT8} : type_code<T>(); }

    uint64_t steps() const {
        const uint64_t staged = shape_ == Shape::Inline ? 1 : shape_ == Shape::Slices ? 2 * pieces_ : pieces_;
        switch (route_) {
            case Route::Undecided: return ~uint64_t{0};
            case Route::Windows: return 2;
            case Route::StagedLate: return staged + 1;
            default: return staged;
        }
    }

    uint64_t slice_step(uint64_t at) const { return (at - (route_ == Route::StagedLate && at > 0 ? 1 : 0)) & 1; }

    /* Whether data goes from all to the root in this step, or from the root to all. */
    bool to_root(uint64_t at) const {
        return kind_ == Kind::Gather || (kind_ == Kind::Reduce && (shape_ != Shape::Slices || slice_step(at) == 1));
    }
    bool from_root() const { return kind_ == Kind::Broadcast || kind_ == Kind::Scatter; }
    /* Reads, and writes only that it has. */
    bool is_sink(uint64_t at) const { return from_root() ? !is_root() : to_root(at) && is_root(); }
    /* Writes, and reads nothing. */
    bool is_source(uint64_t at) const { return from_root() ? is_root() : to_root(at) && !is_root(); }
    Use use_of(uint64_t at) const {
        const uint64_t readers = is_sink(at)                     ? 0
                                 : !is_source(at) || is_root() ? group_.others()
                                                               : uint64_t{1} << root_;
        return Use{base_ + 1 + at, readers, chain_, is_source(at) ? 1u : 0u};
    }

    bool write(uint64_t at) {
        const Use used = use_of(at);
        if (!group_.await_free(state_.lines[used.step % kLines])) {
            return false;
        }
        uint64_t payload[kInlineWords] = {};
        int words = 0;
        if (!is_sink(at)) {
            if (!stage(at, used)) {
                return false;
            }
            if (shape_ == Shape::Inline) {
                const uint64_t bytes = kind_ == Kind::Barrier ? 0 : count_ * sizeof(T) * (has_blocks() ? n_ : 1);
                if (bytes > 0) {
                    std::memcpy(payload, in_, bytes);
                }
                words = static_cast<int>((bytes + 7) / 8);
            } else if (at == 0 && places_ > 0) {
                payload[0] = own_[0];
                payload[1] = own_[1];
                words = 2;
            }
        }
        group_.publish(used.step, chain_, payload, words, used);
        if (is_source(at) && pieces_ > 1) {
            group_.notify();
        }
        return true;
    }

    /* Stages what the step announces, if anything. */
    bool stage(uint64_t at, Use used) {
        uint64_t piece = at;
        if (shape_ == Shape::Inline || route_ == Route::Windows) {
            return true;
        }
        if (route_ == Route::Undecided && own_[0] != 0 && own_[1] != 0) {
            return true; /* data in a window waits for what the others say */
        }
        const uint64_t late = route_ == Route::StagedLate ? 1 : 0;
        if (late == 1 && (at == 0 || (at == 1 && staged_first_))) {
            return true;
        }
        piece = at - late;
        if (shape_ == Shape::Slices) {
            if ((piece & 1) == 1) {
                return true;
            }
            piece /= 2;
            used = Use{used.step + 1, group_.others(), chain_, 0};
        } else if (places_ == 1 && own_[0] != 0) {
            return true; /* read where it stands */
        }
        Use &half = state_.halves[(first_piece_ + piece) & 1];
        if (!group_.await_free(half)) {
            return false;
        }
        fill(piece);
        half = used;
        staged_first_ = staged_first_ || at == 0;
        return true;
    }

    /* The elements of a piece. */
    Span elements(uint64_t piece) const {
        const uint64_t start = least(piece * block_, count_);
        return Span{start, least(start + block_, count_)};
    }
    /* The part of `count` elements that a rank reduces. */
    Span slice(uint64_t count, uint64_t rank) const {
        const uint64_t each = round_up((count + n_ - 1) / n_, kSliceAlign / sizeof(T));
        return Span{least(rank * each, count), least((rank + 1) * each, count)};
    }
    T *half(uint32_t rank, uint64_t piece) const {
        return reinterpret_cast<T *>(group_.half(rank, first_piece_ + piece));
    }
    void copy(T *to, const T *from, uint64_t count) const {
        if (to != from && count > 0) {
            copy_bytes(to, from, count * sizeof(T), group_.table_.strings_from);
        }
    }

    void fill(uint64_t piece) {
        T *to = half(me_, piece);
        const Span part = elements(piece);
        if (shape_ == Shape::Slices) {
            if (kind_ == Kind::Reduce && own_[0] != 0) {
                return;
            }
            /* Its own slice it reduces from where it stands. */
            const Span own = slice(part.count(), me_);
            copy(to, in_ + part.start, own.start);
            copy(to + own.end, in_ + part.start + own.end, part.count() - own.end);
        } else if (has_blocks()) {
            for (uint32_t rank = 0; rank < n_; ++rank) {
                if (rank != me_) {
                    copy(to + rank * block_, in_ + rank * count_ + part.start, part.count());
                }
            }
        } else {
            copy(to, in_ + part.start, part.count());
        }
    }

    /*
     * Pages of host memory that this process has not used yet are mapped at first use: those around a page that is read, but only the
     * one that is written, which takes microseconds. So the output is read here and there before it is written, while the peers come.
     */
    void map_output() const {
        constexpr uint64_t kAround = 64 << 10;
        /* One in the window is mapped, and peers may write to it already. */
        const bool has_output = out_ != nullptr && own_[1] == 0 && (is_root() || (kind_ != Kind::Reduce && kind_ != Kind::Gather));
        const uint64_t bytes = has_output ? count_ * sizeof(T) : 0;
        const auto *at = reinterpret_cast<const volatile unsigned char *>(out_);
        for (uint64_t offset = 0; bytes >= kPage && offset < bytes; offset += kAround) {
            (void)at[offset];
        }
        if (bytes >= kPage) {
            (void)at[bytes - 1];
        }
    }

    bool read(uint64_t at) {
        if (at == 0) {
            map_output();
        }
        const uint64_t step = base_ + 1 + at;
        const uint64_t from = is_source(at) ? 0 : is_sink(at) && !is_root() ? uint64_t{1} << root_ : group_.others();
        for (uint32_t rank = n_; rank-- > 0;) {
            if ((from >> rank & 1) == 0) {
                continue;
            }
            auto seen = group_.observe(rank, step, chain_);
            if (seen == CommGroup::Seen::NotYet) {
                if (!group_.await(group_.line(rank, step), step, rank, true)) {
                    return false;
                }
                seen = group_.observe(rank, step, chain_);
            }
            if (seen != CommGroup::Seen::Here) {
                return group_.mismatch(rank);
            }
        }
        if (block_ * sizeof(T) >= group_.table_.notify_first) {
            group_.notify();
        }
        if (!take(at, step, from)) {
            return group_.fail(CommGroup::kMismatch, "a rank wrote a place that cannot be; it runs another build, or "
                                                     "something overwrote its window");
        }
        if (shape_ == Shape::Pieces && route_ == Route::Staged) {
            take_over(at, from);
        }
        group_.finish(step);
        return true;
    }

    bool take(uint64_t at, uint64_t step, uint64_t from) {
        if (shape_ == Shape::Inline) {
            take_inline(step);
            return true;
        }
        switch (route_) {
            case Route::Windows: return true;
            case Route::StagedLate: return take_piece(at - 1);
            case Route::Staged:
                if (at == 0 && places_ == 1) {
                    read_places(step, from);
                }
                return take_piece(at);
            default: break;
        }
        read_places(step, from);
        uint32_t in_windows = 0;
        for (uint32_t rank = 0; rank < n_; ++rank) {
            in_windows += placed_[0][rank] != 0 && placed_[1][rank] != 0 ? 1 : 0;
        }
        if (in_windows == 0) {
            route_ = Route::Staged;
            return take_piece(0);
        }
        if (in_windows == n_) {
            route_ = Route::Windows;
            return take_windows();
        }
        route_ = Route::StagedLate;
        if (staged_first_) {
            state_.halves[first_piece_ & 1].step += 1;
        }
        return true;
    }

    void read_places(uint64_t step, uint64_t from) {
        for (uint32_t rank = 0; rank < n_; ++rank) {
            const uint64_t *words = group_.line(rank, step) + 2;
            for (int side = 0; side < 2; ++side) {
                /* Relaxed: ordered by the acquire load of the step. */
                placed_[side][rank] = (from >> rank & 1) != 0 ? __atomic_load_n(words + side, __ATOMIC_RELAXED) : own_[side];
            }
        }
        placed_[0][me_] = own_[0];
    }

    /* Where elements of another rank stand: from `at` of its input on, or from `staged` of the half on. Null for a place
     * that cannot be. */
    const T *source(uint32_t rank, uint64_t piece, uint64_t at, uint64_t count, uint64_t staged) const {
        const uint64_t place = placed_[0][rank];
        if (places_ != 1 || place == 0) {
            return half(rank, piece) + staged;
        }
        const uint64_t offset = place - 1 + at * sizeof(T);
        return group_.in_pool(offset, count * sizeof(T)) ? reinterpret_cast<const T *>(group_.window(rank) + offset) : nullptr;
    }

    void combine(const T *const *sources, T *const *targets, uint32_t count_of_targets, uint64_t count) {
        fold(static_cast<CommOp>(op_), sources, n_, targets, count_of_targets, count);
    }

    /* Takes over the lines of a piece that the other of two ranks staged for this one only, as Memory::take_over of the Rust side
     * does: the next store of the rank that staged it then finds no other copy. */
    void take_over(uint64_t piece, uint64_t from) const {
        constexpr uint64_t kLeast = 1 << 10, kLine = 64;
        const uint32_t peer = 1 - (me_ & 1);
        if (n_ != 2 || from == 0 || (places_ == 1 && placed_[0][peer] != 0)) {
            return;
        }
        auto *theirs = reinterpret_cast<volatile unsigned char *>(half(peer, piece) + (has_blocks() ? me_ * block_ : 0));
        const uint64_t bytes = elements(piece).count() * sizeof(T);
        const uint64_t most = has_fast_strings() ? least(group_.table_.take_over, group_.table_.strings_from)
                                                 : group_.table_.take_over;
        for (uint64_t at = 0; bytes >= kLeast && bytes <= most && at < bytes; at += kLine) {
            theirs[at] = theirs[at];
        }
    }

    bool take_piece(uint64_t at) {
        if (shape_ == Shape::Slices) {
            return (at & 1) == 0 ? reduce_slice(at / 2) : collect_slices(at / 2);
        }
        const Span part = elements(at);
        const uint64_t count = part.count();
        const bool blocks = has_blocks();
        if (reduces()) {
            if (kind_ == Kind::Reduce && !is_root()) {
                return true;
            }
            const uint64_t start = blocks ? me_ * count_ + part.start : part.start;
            const T *sources[COMM_MAX_RANK_NUM];
            for (uint32_t rank = 0; rank < n_; ++rank) {
                sources[rank] = rank == me_ ? in_ + start : source(rank, at, start, count, blocks ? me_ * block_ : 0);
                if (sources[rank] == nullptr) {
                    return false;
                }
            }
            T *target = out_ + part.start;
            combine(sources, &target, 1, count);
            return true;
        }
        if (from_root()) {
            if (is_root()) {
                if (kind_ == Kind::Scatter) {
                    copy(out_ + part.start, in_ + me_ * count_ + part.start, count);
                }
                return true;
            }
            const uint64_t start = blocks ? me_ * count_ + part.start : part.start;
            const T *from = source(root_, at, start, count, blocks ? me_ * block_ : 0);
            if (from != nullptr) {
                copy(out_ + part.start, from, count);
            }
            return from != nullptr;
        }
        if (kind_ == Kind::Gather && !is_root()) {
            return true;
        }
        /* All gather, or an exchange of blocks: this rank's own, then the others in turn, starting behind this rank. */
        const uint64_t mine = blocks ? me_ * count_ + part.start : part.start;
        copy(out_ + me_ * count_ + part.start, in_ + mine, count);
        for (uint32_t by = 1; by < n_; ++by) {
            const uint32_t rank = (me_ + by) % n_;
            const T *from = source(rank, at, mine, count, blocks ? me_ * block_ : 0);
            if (from == nullptr) {
                return false;
            }
            copy(out_ + rank * count_ + part.start, from, count);
        }
        return true;
    }

    bool reduce_slice(uint64_t piece) {
        const Span part = elements(piece), own = slice(part.count(), me_);
        const T *sources[COMM_MAX_RANK_NUM];
        for (uint32_t rank = 0; rank < n_; ++rank) {
            const uint64_t start = part.start + own.start;
            sources[rank] = rank == me_ ? in_ + start : source(rank, piece, start, own.count(), own.start);
            if (sources[rank] == nullptr) {
                return false;
            }
        }
        T *result = half(me_, piece) + own.start;
        if (kind_ == Kind::Reduce && !is_root()) {
            combine(sources, &result, 1, own.count());
            return true;
        }
        T *targets[2] = {out_ + part.start + own.start, result};
        combine(sources, targets, kind_ == Kind::Reduce ? 1 : 2, own.count());
        return true;
    }

    bool collect_slices(uint64_t piece) {
        if (kind_ == Kind::Reduce && !is_root()) {
            return true;
        }
        const Span part = elements(piece);
        for (uint32_t by = 1; by < n_; ++by) {
            const uint32_t rank = (me_ + by) % n_;
            const Span theirs = slice(part.count(), rank);
            copy(out_ + part.start + theirs.start, half(rank, piece) + theirs.start, theirs.count());
        }
        return true;
    }

    /* Reduces this rank's slice of all windows, and writes it to all windows. */
    bool take_windows() {
        const Span own = slice(count_, me_);
        const T *sources[COMM_MAX_RANK_NUM];
        T *targets[COMM_MAX_RANK_NUM];
        for (uint32_t rank = 0; rank < n_; ++rank) {
            for (int side = 0; side < 2; ++side) {
                if (!group_.in_pool(placed_[side][rank] - 1, count_ * sizeof(T))) {
                    return false;
                }
            }
            sources[rank] = reinterpret_cast<T *>(group_.window(rank) + placed_[0][rank] - 1) + own.start;
            targets[rank] = reinterpret_cast<T *>(group_.window(rank) + placed_[1][rank] - 1) + own.start;
        }
        combine(sources, targets, n_, own.count());
        return true;
    }

    /* What is in the lines of a step. */
    void take_inline(uint64_t step) {
        T payloads[COMM_MAX_RANK_NUM][kInline / sizeof(T)];
        const T *from[COMM_MAX_RANK_NUM];
        const uint64_t start = has_blocks() ? me_ * count_ : 0;
        for (uint32_t rank = 0; rank < n_; ++rank) {
            from[rank] = in_ + start;
            if (rank != me_ && kind_ != Kind::Barrier) {
                uint64_t words[kInlineWords];
                for (uint64_t at = 0; at < kInlineWords; ++at) {
                    /* Relaxed: ordered by the acquire load of the step. */
                    words[at] = __atomic_load_n(group_.line(rank, step) + 2 + at, __ATOMIC_RELAXED);
                }
                std::memcpy(payloads[rank], words, kInline);
                from[rank] = payloads[rank] + start;
            }
        }
        const bool collects = kind_ == Kind::AllGather || kind_ == Kind::AllToAll || (kind_ == Kind::Gather && is_root());
        if (reduces()) {
            if (kind_ != Kind::Reduce || is_root()) {
                combine(from, &out_, 1, count_);
            }
        } else if (collects) {
            for (uint32_t rank = 0; rank < n_; ++rank) {
                copy(out_ + rank * count_, from[rank], count_);
            }
        } else if (from_root() && (kind_ == Kind::Scatter || !is_root())) {
            copy(out_, from[root_], count_);
        }
    }

    /* With one rank there is nothing but a copy, or what the operation makes of one value. */
    bool alone() {
        if (reduces()) {
            combine(&in_, &out_, 1, count_);
        } else if (kind_ != Kind::Barrier) {
            copy(out_, in_, count_);
        }
        return true;
    }

    /* A rank whose input is read where it stands returns when all have read it. */
    bool drain() {
        if (places_ != 1 || own_[0] == 0) {
            return true;
        }
        const uint64_t at = steps() - (shape_ == Shape::Slices ? 2 : 1);
        if (is_sink(at)) {
            return true;
        }
        return group_.await_free(use_of(at));
    }

    CommGroup &group_;
    GroupState &state_;
    Kind kind_;
    const T *in_;
    T *out_;
    uint64_t count_;
    int op_;
    uint32_t root_, n_, me_, chain_ = 0;
    Shape shape_ = Shape::Alone;
    Route route_ = Route::Staged;
    uint64_t block_ = 0, pieces_ = 0, base_ = 0, first_piece_ = 0;
    int places_ = 0;
    uint64_t own_[2] = {0, 0};
    uint64_t placed_[2][COMM_MAX_RANK_NUM] = {};
    bool staged_first_ = false;
};

}  // namespace comm_detail

#endif
