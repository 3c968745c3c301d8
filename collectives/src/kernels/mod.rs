//! Reductions of up to 64 sources in one pass, in the order of the sources.
//!
//! There are up to three builds of the same code: for every processor of the target, with AVX2 and F16C, and with AVX-512. None of them
//! contracts a product and a sum, so all give the same bits. [`Kernels::get`] chooses once.
//!
//! # Safety
//! The kernels go through raw pointers; [`Fold`] says what a caller promises.
#![allow(unsafe_code)]

mod copy;
mod lanes;
mod ops;
mod processor;

use copy::Copy;
pub(crate) use copy::{Copier, strings_from};
pub(crate) use processor::readers_take_lines;

use crate::element::{DType, Op};
use lanes::{Baseline, Brain, Build, Half, Lane};
use ops::{Avg, BitAnd, BitOr, BitXor, LogicalAnd, LogicalOr, LogicalXor, Max, Min, Operation, Prod, Sum};
use std::sync::OnceLock;

/// Combines `count` elements of each source, and writes the result to each target.
///
/// # Safety
/// Every source is valid for reads and every target for writes of `count` elements; there is at least one source. No other process
/// writes the sources meanwhile. A target may be a source, element for element, and overlaps them in no other manner. The processor
/// has what the build of the kernel needs.
pub(crate) type Fold = unsafe fn(sources: &[*const u8], targets: &[*mut u8], count: usize);

/// The kernels of one build, by type and operation.
pub(crate) struct Kernels {
    pub(crate) copy: Copy,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests say what they ran"))]
    pub(crate) name: &'static str,
    table: [[Option<Fold>; Op::ALL.len()]; DType::ALL.len()],
}

impl Kernels {
    /// The best build for this processor.
    pub(crate) fn get() -> &'static Self {
        static CHOSEN: OnceLock<&'static Kernels> = OnceLock::new();
        CHOSEN.get_or_init(|| Self::all().pop().unwrap_or(&BASELINE))
    }

    /// The builds that this processor can run, the best last.
    pub(crate) fn all() -> Vec<&'static Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "one build only"))]
        let mut builds: Vec<&'static Self> = vec![&BASELINE];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
            if avx2 {
                builds.push(&AVX2);
            }
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && avx512 {
                builds.push(&AVX512);
            }
        }
        builds
    }

    /// The kernel for an operation; `None` where [`Op::applies_to`] is false.
    #[inline]
    pub(crate) fn fold(&self, dtype: DType, op: Op) -> Option<Fold> {
        self.table[dtype.index()][op as usize]
    }
}

/// Bytes of accumulators that stay in registers from the first source to the last.
const BLOCK: usize = 256;

/// The code of every kernel: blocks of `N` elements, then of `M`, then of `S`, then single ones. Most calls are short, and a rest of single
/// elements would take them longer than everything else.
///
/// # Safety
/// As [`Fold`].
#[inline(always)]
unsafe fn fold_all<
    B: Build,
    L: Lane,
    O: Operation<L::Acc>,
    const N: usize,
    const M: usize,
    const S: usize,
>(
    sources: &[*const u8],
    targets: &[*mut u8],
    count: usize,
    size: usize,
) {
    let ranks = sources.len();
    let mut at = 0;
    while at + N <= count {
        // SAFETY: elements `at..at + N` are within `count`. All sources are loaded before any target is stored.
        unsafe { fold_block::<B, L, O, N>(sources, targets, at * size, ranks) };
        at += N;
    }
    while at + M <= count {
        // SAFETY: as above.
        unsafe { fold_block::<B, L, O, M>(sources, targets, at * size, ranks) };
        at += M;
    }
    while at + S <= count {
        // SAFETY: as above.
        unsafe { fold_block::<B, L, O, S>(sources, targets, at * size, ranks) };
        at += S;
    }
    while at < count {
        // SAFETY: as above.
        unsafe { fold_block::<B, L, O, 1>(sources, targets, at * size, ranks) };
        at += 1;
    }
}

/// # Safety
/// As [`Fold`], for `N` elements from byte `offset` on.
#[inline(always)]
unsafe fn fold_block<B: Build, L: Lane, O: Operation<L::Acc>, const N: usize>(
    sources: &[*const u8],
    targets: &[*mut u8],
    offset: usize,
    ranks: usize,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let (first, others) = sources.split_first().unwrap_unchecked();
        let mut acc = L::load::<B, N>(first.add(offset));
        for source in others {
            let next = L::load::<B, N>(source.add(offset));
            for lane in 0..N {
                acc[lane] = O::fold(acc[lane], next[lane]);
            }
        }
        for value in &mut acc {
            *value = O::finish(*value, ranks);
        }
        for target in targets {
            L::store::<B, N>(acc, target.add(offset));
        }
    }
}

/// One build: the same code compiled with other features.
macro_rules! build {
    ($table:ident, $module:ident, $name:literal, $build:ty $(, #[$feature:meta])?) => {
        mod $module {
            use super::*;

            /// # Safety
            /// As [`Fold`].
            $(#[$feature])?
            unsafe fn kernel<
                L: Lane,
                O: Operation<L::Acc>,
                const N: usize,
                const M: usize,
                const S: usize,
                const SIZE: usize,
            >(
                sources: &[*const u8],
                targets: &[*mut u8],
                count: usize,
            ) {
                // SAFETY: the caller's promises.
                unsafe { fold_all::<$build, L, O, N, M, S>(sources, targets, count, SIZE) }
            }

            /// # Safety
            /// As [`Copy`].
            $(#[$feature])?
            unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
                // SAFETY: the caller's promises.
                unsafe { copy::copy_all(from, to, bytes) }
            }

            macro_rules! float {
                ($lane:ty, $n:expr, $size:literal) => {{
                    const N: usize = $n;
                    const M: usize = 64 / $size;
                    const S: usize = 16 / $size;
                    [
                        Some(kernel::<$lane, Sum, N, M, S, $size> as Fold),
                        Some(kernel::<$lane, Prod, N, M, S, $size> as Fold),
                        Some(kernel::<$lane, Max, N, M, S, $size> as Fold),
                        Some(kernel::<$lane, Min, N, M, S, $size> as Fold),
                        Some(kernel::<$lane, Avg, N, M, S, $size> as Fold),
                        None,
                        None,
                        None,
                        None,
                        None,
                        None,
                    ]
                }};
            }

            // Signed and unsigned ones of a size differ only in their order: they share the rest, which is most of what is compiled.
            macro_rules! integer {
                ($int:ident, $bits:ident) => {{
                    const N: usize = BLOCK / size_of::<$int>();
                    const M: usize = 64 / size_of::<$int>();
                    const S: usize = 16 / size_of::<$int>();
                    const SIZE: usize = size_of::<$int>();
                    [
                        Some(kernel::<$bits, Sum, N, M, S, SIZE> as Fold),
                        Some(kernel::<$bits, Prod, N, M, S, SIZE> as Fold),
                        Some(kernel::<$int, Max, N, M, S, SIZE> as Fold),
                        Some(kernel::<$int, Min, N, M, S, SIZE> as Fold),
                        None,
                        Some(kernel::<$bits, BitAnd, N, M, S, SIZE> as Fold),
                        Some(kernel::<$bits, BitOr, N, M, S, SIZE> as Fold),
                        Some(kernel::<$bits, BitXor, N, M, S, SIZE> as Fold),
                        Some(kernel::<$bits, LogicalAnd, N, M, S, SIZE> as Fold),
                        Some(kernel::<$bits, LogicalOr, N, M, S, SIZE> as Fold),
                        Some(kernel::<$bits, LogicalXor, N, M, S, SIZE> as Fold),
                    ]
                }};
            }

            // A `bool` from another process may be any byte, and every operation on it is a logical one: the result is 0 or 1.
            macro_rules! boolean {
                () => {{
                    let and = Some(kernel::<u8, LogicalAnd, BLOCK, 64, 16, 1> as Fold);
                    let or = Some(kernel::<u8, LogicalOr, BLOCK, 64, 16, 1> as Fold);
                    let xor = Some(kernel::<u8, LogicalXor, BLOCK, 64, 16, 1> as Fold);
                    [None, None, or, and, None, and, or, xor, and, or, xor]
                }};
            }

            // In the order of `DType::ALL`.
            pub(super) static TABLE: Kernels = Kernels {
                copy,
                name: $name,
                table: [
                    float!(f32, BLOCK / 4, 4),
                    float!(Half, 32, 2),
                    integer!(i32, u32),
                    integer!(i16, u16),
                    integer!(i8, u8),
                    integer!(u8, u8),
                    float!(Brain, 32, 2),
                    integer!(i64, u64),
                    integer!(u64, u64),
                    integer!(u16, u16),
                    integer!(u32, u32),
                    float!(f64, BLOCK / 8, 8),
                    boolean!(),
                ],
            };
        }
        use $module::TABLE as $table;
    };
}

build!(BASELINE, baseline, "baseline", Baseline);
#[cfg(target_arch = "x86_64")]
build!(AVX2, avx2, "avx2", lanes::F16c, #[target_feature(enable = "avx2,f16c")]);
#[cfg(target_arch = "x86_64")]
build!(AVX512, avx512, "avx512", lanes::F16c, #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]);

#[cfg(test)]
mod tests;
