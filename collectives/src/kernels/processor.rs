//! What is known of the processor, besides the instructions that it has.

/// Whether it says that it moves even short strings fast.
pub(super) fn has_fast_strings() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        const FAST_SHORT_STRINGS: u32 = 1 << 4;
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & FAST_SHORT_STRINGS != 0
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Whether a rank that alone reads lines does well to have them as its own: on AMD it does, and on Intel it does not, both measured.
/// On others it is not known.
pub(crate) fn readers_take_lines() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let maker = core::arch::x86_64::__cpuid(0);
        maker.ebx.to_le_bytes() == *b"Auth" && maker.ecx.to_le_bytes() == *b"cAMD"
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}
