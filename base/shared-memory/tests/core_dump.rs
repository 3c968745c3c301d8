//! What the kernel would put into a core dump.
// Miri knows no memfd.
#![cfg(not(miri))]
#![allow(missing_docs)]

use shared_memory::Region;

/// The flags of the mapping at `at`, as `/proc/self/smaps` has them.
fn flags(at: usize) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.starts_with(&format!("{at:x}-")));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).expect("a mapping at that address");
    flags.split_whitespace().map(str::to_owned).collect()
}

// SM-6
#[test]
fn f50_mappings_are_left_out_of_core_dumps() {
    let sparse = Region::create_sparse("t", 1 << 30).unwrap();
    let whole = Region::create("t", 4096).unwrap();
    let attached = Region::attach(sparse.fd().try_clone_to_owned().unwrap(), "t", 1 << 30).unwrap();
    for region in [&sparse, &whole, &attached] {
        let flags = flags(region.base().as_ptr() as usize);
        // "dd" is what `madvise(MADV_DONTDUMP)` sets.
        assert!(flags.iter().any(|flag| flag == "dd"), "{flags:?}");
    }
}
