//! How elements are loaded into the type in which they are accumulated, and stored back.
//!
//! # Safety
//! Loads and stores through raw pointers that may be unaligned. The caller promises that the range is valid; see
//! [`Fold`](super::Fold). Nothing is assumed about other pointers: in and out may be the same.
#![allow(unsafe_code)]

use core::ptr;

/// An element type.
pub(super) trait Lane: Copy {
    /// What it is accumulated in.
    type Acc: Copy;

    /// Loads `N` elements.
    ///
    /// # Safety
    /// `from` is valid for reads of `N` elements, and the processor has what `B` stands for.
    unsafe fn load<B: Build, const N: usize>(from: *const u8) -> [Self::Acc; N];

    /// Stores `N` elements.
    ///
    /// # Safety
    /// `to` is valid for writes of `N` elements, and the processor has what `B` stands for.
    unsafe fn store<B: Build, const N: usize>(values: [Self::Acc; N], to: *mut u8);
}

macro_rules! plain {
    ($($name:ident),+) => { $(
        impl Lane for $name {
            type Acc = $name;

            #[inline(always)]
            unsafe fn load<B: Build, const N: usize>(from: *const u8) -> [$name; N] {
                // SAFETY: the caller's promise; any bytes are values of this type.
                unsafe { ptr::read_unaligned(from.cast()) }
            }

            #[inline(always)]
            unsafe fn store<B: Build, const N: usize>(values: [$name; N], to: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { ptr::write_unaligned(to.cast(), values) }
            }
        }
    )+ };
}

plain!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

/// IEEE half precision, accumulated in `f32`.
#[derive(Clone, Copy)]
pub(super) struct Half;

/// The upper half of an `f32`, accumulated in `f32`.
#[derive(Clone, Copy)]
pub(super) struct Brain;

impl Lane for Brain {
    type Acc = f32;

    #[inline(always)]
    unsafe fn load<B: Build, const N: usize>(from: *const u8) -> [f32; N] {
        // SAFETY: the caller's promises.
        unsafe { B::load_brain(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store<B: Build, const N: usize>(values: [f32; N], to: *mut u8) {
        // SAFETY: the caller's promises.
        unsafe { B::store_brain(values, to.cast()) }
    }
}

impl Lane for Half {
    type Acc = f32;

    #[inline(always)]
    unsafe fn load<B: Build, const N: usize>(from: *const u8) -> [f32; N] {
        // SAFETY: the caller's promises.
        unsafe { B::load_half(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store<B: Build, const N: usize>(values: [f32; N], to: *mut u8) {
        // SAFETY: the caller's promises.
        unsafe { B::store_half(values, to.cast()) }
    }
}

/// What differs between the builds besides the instructions that the compiler may choose: conversions of 16-bit floats, of which it
/// does not make vectors by itself.
pub(super) trait Build {
    /// # Safety
    /// As [`Lane::load`].
    #[inline(always)]
    unsafe fn load_brain<const N: usize>(from: *const u16) -> [f32; N] {
        // SAFETY: the caller's promise.
        let bits: [u16; N] = unsafe { ptr::read_unaligned(from.cast()) };
        bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }

    /// # Safety
    /// As [`Lane::store`].
    #[inline(always)]
    unsafe fn store_brain<const N: usize>(values: [f32; N], to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { ptr::write_unaligned(to.cast(), values.map(brain_bits)) }
    }

    /// # Safety
    /// As [`Lane::load`].
    #[inline(always)]
    unsafe fn load_half<const N: usize>(from: *const u16) -> [f32; N] {
        // SAFETY: the caller's promise.
        let bits: [u16; N] = unsafe { ptr::read_unaligned(from.cast()) };
        bits.map(|bits| half::f16::from_bits(bits).to_f32_const())
    }

    /// # Safety
    /// As [`Lane::store`].
    #[inline(always)]
    unsafe fn store_half<const N: usize>(values: [f32; N], to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe {
            ptr::write_unaligned(to.cast(), values.map(|value| half::f16::from_f32_const(value).to_bits()))
        }
    }
}

/// The `bf16` nearest to `value`, ties to even. A NaN here is the one of `ops`, which this keeps as it is.
#[inline(always)]
fn brain_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// What every processor of the target has.
pub(super) struct Baseline;

impl Build for Baseline {}

/// Processors with AVX2 and F16C: eight conversions at a time.
#[cfg(target_arch = "x86_64")]
pub(super) struct F16c;

#[cfg(target_arch = "x86_64")]
impl Build for F16c {
    #[inline(always)]
    unsafe fn load_brain<const N: usize>(from: *const u16) -> [f32; N] {
        use core::arch::x86_64::{
            _mm_loadu_si128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_slli_epi32, _mm256_storeu_ps,
        };
        let mut wide = [0.0; N];
        let mut at = 0;
        while at + 8 <= N {
            // SAFETY: eight elements from `at` on are within `N`; the caller promised the processor.
            unsafe {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(at).cast()));
                let values = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
                _mm256_storeu_ps(wide.as_mut_ptr().add(at), values);
            }
            at += 8;
        }
        while at < N {
            // SAFETY: within `N`.
            wide[at] = f32::from_bits(u32::from(unsafe { ptr::read_unaligned(from.add(at)) }) << 16);
            at += 1;
        }
        wide
    }

    #[inline(always)]
    unsafe fn store_brain<const N: usize>(values: [f32; N], to: *mut u16) {
        use core::arch::x86_64::{
            _mm_storeu_si128, _mm256_add_epi32, _mm256_and_si256, _mm256_castps_si256,
            _mm256_castsi256_si128, _mm256_loadu_ps, _mm256_packus_epi32, _mm256_permute4x64_epi64,
            _mm256_set1_epi32, _mm256_srli_epi32,
        };
        let mut at = 0;
        while at + 8 <= N {
            // SAFETY: as in `load_brain`. The arithmetic is that of `brain_bits`; packing does not saturate 16-bit values.
            unsafe {
                let bits = _mm256_castps_si256(_mm256_loadu_ps(values.as_ptr().add(at)));
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
                let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, up));
                let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(rounded, rounded));
                _mm_storeu_si128(to.add(at).cast(), _mm256_castsi256_si128(packed));
            }
            at += 8;
        }
        while at < N {
            // SAFETY: within `N`.
            unsafe { ptr::write_unaligned(to.add(at), brain_bits(values[at])) };
            at += 1;
        }
    }

    #[inline(always)]
    unsafe fn load_half<const N: usize>(from: *const u16) -> [f32; N] {
        use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let mut wide = [0.0; N];
        let mut at = 0;
        while at + 8 <= N {
            // SAFETY: eight elements from `at` on are within `N`; the caller promised the processor.
            unsafe {
                let narrow: __m128i = _mm_loadu_si128(from.add(at).cast());
                _mm256_storeu_ps(wide.as_mut_ptr().add(at), _mm256_cvtph_ps(narrow));
            }
            at += 8;
        }
        while at < N {
            // SAFETY: within `N`.
            let bits = unsafe { ptr::read_unaligned(from.add(at)) };
            wide[at] = half::f16::from_bits(bits).to_f32_const();
            at += 1;
        }
        wide
    }

    #[inline(always)]
    unsafe fn store_half<const N: usize>(values: [f32; N], to: *mut u16) {
        use core::arch::x86_64::{
            _MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps,
        };
        let mut at = 0;
        while at + 8 <= N {
            // SAFETY: as in `load_half`.
            unsafe {
                let wide = _mm256_loadu_ps(values.as_ptr().add(at));
                let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                _mm_storeu_si128(to.add(at).cast(), narrow);
            }
            at += 8;
        }
        while at < N {
            // SAFETY: within `N`.
            unsafe {
                ptr::write_unaligned(to.add(at), half::f16::from_f32_const(values[at]).to_bits());
            }
            at += 1;
        }
    }
}
