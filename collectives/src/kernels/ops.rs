//! What the operations do to one pair of values. The same code in every build, so the same bits.

/// One operation on values of type `A`, in which sums are accumulated.
pub(super) trait Operation<A: Copy> {
    /// Combines what the ranks before gave with what the next one gives.
    fn fold(acc: A, next: A) -> A;

    /// The last step, after all of `ranks`.
    #[inline(always)]
    fn finish(acc: A, _ranks: usize) -> A {
        acc
    }
}

pub(super) struct Sum;
pub(super) struct Prod;
pub(super) struct Max;
pub(super) struct Min;
pub(super) struct Avg;
pub(super) struct BitAnd;
pub(super) struct BitOr;
pub(super) struct BitXor;
pub(super) struct LogicalAnd;
pub(super) struct LogicalOr;
pub(super) struct LogicalXor;

macro_rules! floats {
    ($($float:ident),+) => { $(
        // Which of two NaNs an addition returns depends on the order in which the compiler puts its operands, so a result that is
        // NaN is always the same one.
        impl Operation<$float> for Sum {
            #[inline(always)]
            fn fold(acc: $float, next: $float) -> $float {
                acc + next
            }
            #[inline(always)]
            fn finish(acc: $float, _ranks: usize) -> $float {
                if acc.is_nan() { $float::NAN } else { acc }
            }
        }
        impl Operation<$float> for Avg {
            #[inline(always)]
            fn fold(acc: $float, next: $float) -> $float {
                acc + next
            }
            #[inline(always)]
            fn finish(acc: $float, ranks: usize) -> $float {
                if acc.is_nan() { $float::NAN } else { acc / ranks as $float }
            }
        }
        impl Operation<$float> for Prod {
            #[inline(always)]
            fn fold(acc: $float, next: $float) -> $float {
                acc * next
            }
            #[inline(always)]
            fn finish(acc: $float, _ranks: usize) -> $float {
                if acc.is_nan() { $float::NAN } else { acc }
            }
        }
        impl Operation<$float> for Max {
            #[inline(always)]
            #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "true for NaN, which is meant")]
            fn fold(acc: $float, next: $float) -> $float {
                if !(next <= acc) & !acc.is_nan() { next } else { acc }
            }
            #[inline(always)]
            fn finish(acc: $float, _ranks: usize) -> $float {
                if acc.is_nan() { $float::NAN } else { acc }
            }
        }
        impl Operation<$float> for Min {
            #[inline(always)]
            #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "true for NaN, which is meant")]
            fn fold(acc: $float, next: $float) -> $float {
                if !(next >= acc) & !acc.is_nan() { next } else { acc }
            }
            #[inline(always)]
            fn finish(acc: $float, _ranks: usize) -> $float {
                if acc.is_nan() { $float::NAN } else { acc }
            }
        }
    )+ };
}

floats!(f32, f64);

macro_rules! operation {
    ($name:ident for $int:ident: |$acc:ident, $next:ident| $fold:expr) => {
        impl Operation<$int> for $name {
            #[inline(always)]
            fn fold($acc: $int, $next: $int) -> $int {
                $fold
            }
        }
    };
    // Logical: the result is 0 or 1 also where there is one rank only.
    ($name:ident for $int:ident, logical: |$acc:ident, $next:ident| $fold:expr) => {
        impl Operation<$int> for $name {
            #[inline(always)]
            fn fold($acc: $int, $next: $int) -> $int {
                $fold
            }
            #[inline(always)]
            fn finish(acc: $int, _ranks: usize) -> $int {
                $int::from(acc != 0)
            }
        }
    };
}

macro_rules! integers {
    ($($int:ident),+) => { $(
        operation!(Sum for $int: |acc, next| acc.wrapping_add(next));
        operation!(Prod for $int: |acc, next| acc.wrapping_mul(next));
        operation!(BitAnd for $int: |acc, next| acc & next);
        operation!(BitOr for $int: |acc, next| acc | next);
        operation!(BitXor for $int: |acc, next| acc ^ next);
        operation!(LogicalAnd for $int, logical: |acc, next| $int::from(acc != 0) & $int::from(next != 0));
        operation!(LogicalOr for $int, logical: |acc, next| acc | next);
        operation!(LogicalXor for $int, logical: |acc, next| $int::from(acc != 0) ^ $int::from(next != 0));
    )+ };
}

integers!(u8, u16, u32, u64);

macro_rules! ordered {
    ($($int:ident),+) => { $(
        operation!(Max for $int: |acc, next| acc.max(next));
        operation!(Min for $int: |acc, next| acc.min(next));
    )+ };
}

ordered!(i8, i16, i32, i64, u8, u16, u32, u64);
