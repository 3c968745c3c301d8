//! Which algorithm a call takes, in how many steps and pieces. A function of what all ranks agree on, so all choose the same.

use crate::fold_ahead::Ask;
use crate::kernels::{readers_take_lines, strings_from};
use crate::layout::INLINE;
use crate::request::{Kind, Request};
use crate::table::{ANY, Table};
use mailbox_atomics::{prefetch_to_read, prefetch_to_write};

/// So many bytes ahead a rank asks at most for what another staged. With more, pieces of up to 128 KiB gain 4 % where processors share
/// no cache, and lose as much where they do.
const STAGED_AHEAD: usize = 1 << 10;

/// The shape of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One rank: a copy.
    Alone,
    /// One step, and its payload in the line.
    Inline,
    /// One step for each piece: staged, published, read by whoever needs it.
    Pieces,
    /// Two steps for each piece: every rank reduces a slice of it, then collects the others' slices.
    Slices,
    /// The counts of every pair are exchanged first, and say how many pieces follow.
    Matrix,
}

/// How a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    /// How many pieces; for a matrix, as soon as it is known.
    pub(crate) pieces: u64,
    /// Elements of a piece, or of each rank's block of it.
    pub(crate) block: usize,
    /// Words of the first step's payload that say where input and output lie, if in a window: none, input, or both.
    pub(crate) places: u8,
}

/// What a plan depends on besides the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) nranks: usize,
    pub(crate) half: usize,
    pub(crate) core_per_rank: bool,
    pub(crate) table: Table,
    /// Up to so many bytes the only reader of a piece takes its lines over.
    pub(crate) take_over: usize,
    /// From so many bytes on it asks for the lines of a piece before it reads them.
    pub(crate) ask_from: usize,
    /// So many bytes before, and how.
    pub(crate) ask: (usize, Ask),
    /// Up to so many bytes every rank reads all of an all-reduce.
    one_shot: usize,
    /// The same for the root of a reduce.
    reduce_one_shot: usize,
    /// Up to so many bytes an all-reduce takes one step whatever the place of its data.
    pub(crate) at_once: usize,
}

impl Setting {
    /// Works out from the table what every call asks for.
    pub(crate) fn new(nranks: usize, half: usize, core_per_rank: bool, table: Table) -> Self {
        let limit = |value: u32| if value == ANY { usize::MAX } else { value as usize };
        let others = nranks.saturating_sub(1).max(1);
        let reads = |value| limit(value) / if value == ANY { 1 } else { others };
        let pair = limit(table.pair_one_shot);
        let one_shot = if nranks == 2 { pair } else { reads(table.one_shot_reads) };
        let reduce_one_shot = if nranks == 2 { usize::MAX } else { reads(table.reduce_reads) };
        let at_once = one_shot.min(table.window_min as usize - 1).min(table.pieces_from as usize).min(half);
        let take_over = limit(table.take_over).min(strings_from(&table));
        let ask_from = limit(table.ask_from);
        let how: Ask = if readers_take_lines() { prefetch_to_write } else { prefetch_to_read };
        let ask = ((table.ask_ahead as usize).min(STAGED_AHEAD), how);
        Self {
            nranks,
            half,
            core_per_rank,
            table,
            take_over,
            ask_from,
            ask,
            one_shot,
            reduce_one_shot,
            at_once,
        }
    }

    /// Chooses. `most` is the largest of the counts where there is one for each rank.
    #[inline]
    pub(crate) fn plan(&self, request: &Request, most: usize) -> Plan {
        let nranks = self.nranks;
        let count = if request.counts.is_null() { request.count } else { most };
        let bytes = count * request.dtype.size();
        if nranks == 1 {
            return Plan { shape: Shape::Alone, pieces: 0, block: count, places: 0 };
        }
        let inline = |bytes: usize| bytes <= INLINE;
        let (shape, staged) = match request.kind {
            Kind::Barrier => (Shape::Inline, 0),
            Kind::AllToAllV => return Plan { shape: Shape::Matrix, pieces: 0, block: 0, places: 0 },
            Kind::AllReduce
            | Kind::Reduce
            | Kind::Broadcast
            | Kind::AllGather
            | Kind::AllGatherV
            | Kind::Gather
                if inline(bytes) =>
            {
                (Shape::Inline, bytes)
            }
            Kind::ReduceScatter | Kind::AllToAll | Kind::Scatter if inline(bytes * nranks) => {
                (Shape::Inline, bytes)
            }
            Kind::AllReduce if bytes <= self.one_shot => (Shape::Pieces, bytes),
            Kind::Reduce if bytes <= self.reduce_one_shot => (Shape::Pieces, bytes),
            Kind::AllReduce | Kind::Reduce => (Shape::Slices, bytes),
            Kind::Broadcast | Kind::AllGather | Kind::AllGatherV | Kind::Gather => (Shape::Pieces, bytes),
            Kind::ReduceScatter | Kind::ReduceScatterV | Kind::AllToAll | Kind::Scatter => {
                (Shape::Pieces, bytes.saturating_mul(nranks))
            }
        };
        if shape == Shape::Inline {
            return Plan { shape, pieces: 0, block: count, places: 0 };
        }
        let piece = self.piece(request.kind, staged);
        let block = if staged == bytes { piece / request.dtype.size() } else { self.block(piece, request) };
        let block = block.clamp(1, count.max(1));
        let places = match request.kind {
            Kind::AllReduce if bytes >= self.table.window_min as usize => 2,
            Kind::AllReduce => 0,
            _ if staged >= self.table.by_reference_min as usize => 1,
            _ => 0,
        };
        Plan { shape, pieces: count.div_ceil(block).max(1) as u64, block, places }
    }

    /// Bytes that are staged at a time, of `staged` in all.
    #[inline]
    fn piece(&self, kind: Kind, staged: usize) -> usize {
        let rooted = matches!(kind, Kind::Broadcast | Kind::Scatter | Kind::Gather);
        let table = &self.table;
        let rooted_piece = table.rooted_piece as usize;
        match () {
            // The root stages one piece while the others read the last.
            () if rooted && self.core_per_rank && staged > rooted_piece => rooted_piece,
            () if staged <= (table.pieces_from as usize).min(self.half) => staged,
            () if self.core_per_rank => (table.piece as usize).min(self.half),
            () => self.half,
        }
    }

    /// Elements of each rank's block, so that the blocks of all ranks make a piece.
    pub(crate) fn block(&self, piece: usize, request: &Request) -> usize {
        piece / self.nranks / request.dtype.size()
    }

    /// Elements of each pair's block in a piece of an exchange with a count for each pair.
    pub(crate) fn matrix_block(&self, request: &Request) -> usize {
        let piece =
            if self.core_per_rank { (self.table.pieces_from as usize).min(self.half) } else { self.half };
        self.block(piece, request).max(1)
    }
}

/// The elements `slice` of `count`, cut among `of`, at multiples of `align`.
#[inline]
pub(crate) fn slice(count: usize, slice: usize, of: usize, align: usize) -> std::ops::Range<usize> {
    let each = count.div_ceil(of).next_multiple_of(align);
    (slice * each).min(count)..((slice + 1) * each).min(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{DType, Op};

    fn setting(nranks: usize) -> Setting {
        let table = Table { pair_one_shot: 2 << 20, piece: 256 << 10, ..Table::BASE };
        Setting::new(nranks, crate::layout::half(nranks), nranks == 2, table)
    }

    fn all_reduce(bytes: usize) -> Request {
        let (kind, op) = (Kind::AllReduce, Some(Op::Sum));
        Request { kind, op, dtype: DType::F32, count: bytes / 4, ..Request::BARRIER }
    }

    #[test]
    fn the_table_of_all_reduce() {
        let shape = |nranks, bytes| {
            let plan = setting(nranks).plan(&all_reduce(bytes), 0);
            (plan.shape, plan.pieces)
        };
        assert_eq!(shape(1, 1 << 20), (Shape::Alone, 0));
        assert_eq!(shape(2, 48), (Shape::Inline, 0));
        assert_eq!(shape(2, 52), (Shape::Pieces, 1));
        assert_eq!(shape(2, 1 << 20), (Shape::Pieces, 1));
        assert_eq!(shape(2, 2 << 20), (Shape::Pieces, 8));
        assert_eq!(shape(2, 4 << 20), (Shape::Slices, 16));
        assert_eq!(shape(4, 8 << 10), (Shape::Pieces, 1));
        assert_eq!(shape(4, 64 << 10), (Shape::Slices, 1));
        assert_eq!(shape(4, 4 << 20), (Shape::Slices, 4));
        assert_eq!(shape(64, 512), (Shape::Pieces, 1));
        assert_eq!(shape(64, 1 << 20), (Shape::Slices, 4));
    }

    #[test]
    fn pieces_fit_in_a_half_and_cover_everything() {
        for nranks in [2, 3, 16, 17, 64] {
            for kind in
                Kind::ALL.iter().copied().filter(|kind| !matches!(kind, Kind::Barrier | Kind::AllToAllV))
            {
                for dtype in [DType::I8, DType::F64] {
                    for count in [0, 1, 7, 1000, 100_000, 3_000_001] {
                        let request = Request { kind, dtype, count, ..Request::BARRIER };
                        let setting = setting(nranks);
                        let plan = setting.plan(&request, 0);
                        if plan.shape == Shape::Inline {
                            continue;
                        }
                        let blocks = match kind {
                            Kind::ReduceScatter | Kind::ReduceScatterV | Kind::AllToAll | Kind::Scatter => {
                                nranks
                            }
                            _ => 1,
                        };
                        assert!(plan.block * blocks * dtype.size() <= setting.half, "{request:?} {plan:?}");
                        assert!(plan.block as u64 * plan.pieces >= count as u64 && plan.pieces > 0);
                    }
                }
            }
        }
    }

    #[test]
    fn slices_are_apart_and_cover_everything() {
        for (count, of) in [(0, 3), (5, 3), (1000, 7), (4096, 64), (33, 64)] {
            let mut end = 0;
            for at in 0..of {
                let slice = slice(count, at, of, 32);
                assert_eq!((slice.start, slice.start.is_multiple_of(32) || slice.is_empty()), (end, true));
                end = slice.end;
            }
            assert_eq!(end, count);
        }
    }
}
