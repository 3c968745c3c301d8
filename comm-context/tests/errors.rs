//! What the errors of arguments say, each provoked by the call that refuses it. Those of groups of ranks are provoked in
//! comm-sim, where there are ranks.
#![allow(missing_docs)]

use comm_context::abi::{AbiError, CommContext, DType, DeviceAddr, TensorDesc};
use comm_context::comm::validate::{domain, rootinfo_path, subset, window_size};
use comm_context::comm::{
    AddressSpace, AllocationId, ArgumentError, DomainSpec, Membership, SubsetView, Timeout,
};
use std::path::Path;
use std::time::Duration;

fn all_say<T: std::fmt::Debug, E: std::fmt::Display>(
    cases: impl IntoIterator<Item = (Result<T, E>, &'static str)>,
) {
    for (result, text) in cases {
        match result {
            Ok(value) => panic!("{value:?} where {text:?} was expected"),
            Err(error) => assert_eq!(error.to_string(), text),
        }
    }
}

#[test]
fn what_the_errors_of_contexts_and_tensors_say() {
    let bases = [DeviceAddr(0x1000), DeviceAddr(0x9000)];
    let two = CommContext::new(1, &bases, 0x800).unwrap();
    all_say([
        (
            CommContext::decode(&two.as_bytes()[..9]).map(drop),
            "CommContext has 1056 bytes, but only 9 are given; pass all of them",
        ),
        (
            CommContext::new(2, &bases, 64).map(drop),
            "rank 2 of 2 is impossible; a context has 1 to 64 ranks, numbered from 0",
        ),
        (two.window_in(5).map(drop), "rank 5 is not in the context, which has 2 ranks, counted from 0"),
        (
            CommContext::new(0, &[DeviceAddr(0)], 64).map(drop),
            "the window of rank 0 is impossible: 64 bytes at 0x0; pass what its allocation returned",
        ),
        (
            two.remote(DeviceAddr(0x1000), 0).map(drop),
            "0x1000 is not in this rank's window of 2048 bytes at 0x9000; take an address from there",
        ),
        (
            two.subset(&[1], 0, 2047, 2).map(drop),
            "the slice of 2 bytes at offset 2047 does not lie in the window of 2048 bytes; choose one that does",
        ),
    ]);

    let build = |addr, size, shape: &[u32], strides: &[u32]| {
        TensorDesc::builder(DeviceAddr(addr), size, DType::Float32, shape).strides(strides).build().map(drop)
    };
    let good = TensorDesc::builder(DeviceAddr(0x1000), 64, DType::Float32, &[2]).build().unwrap();
    let spoiled = |spoil: fn(&mut TensorDesc)| {
        let mut desc = good;
        spoil(&mut desc);
        desc.check()
    };
    let mut reserved = good.as_bytes().to_vec();
    let last = reserved.len() - 1;
    reserved[last] = 1;
    all_say([
        (build(0, 64, &[1], &[1]), "the tensor's buffer is null; pass its address"),
        (
            build(0x1000, 64, &[2, 2], &[1]),
            "a tensor has at most 5 dimensions and as many strides, not 2 and 1",
        ),
        (
            build(0x1000, 64, &[2, 2], &[2, 0]),
            "the stride of dimension 1 is 0; strides are in elements and always more than 0",
        ),
        (
            build(0x1000, u64::MAX, &[u32::MAX; 5], &[u32::MAX; 5]),
            "the tensor is too large: its extent overflows; make it smaller",
        ),
        (
            build(0x1000, 104, &[3, 4], &[10, 2]),
            "the tensor ends 108 bytes into its buffer, which has 104; describe less of it, or allocate more",
        ),
        (
            build(0x1002, 64, &[1], &[1]),
            "the buffer at 0x1002 is not aligned to the 4 bytes of an element; choose another address",
        ),
        (DType::from_code(99).map(drop), "unknown data type 99; use a TensorDType"),
        (spoiled(|desc| desc.is_contiguous = 7), "is_contiguous is 7; it must be 0 or 1"),
        (spoiled(|desc| desc.extent = 3), "extent is 3, shape and strides say 2"),
        (
            TensorDesc::decode(&reserved).and_then(|desc| desc.check()),
            "a reserved byte of TensorDesc is not zero, so that a newer or another program wrote it; run one build",
        ),
    ] as [(Result<(), AbiError>, _); 10]);
}

#[test]
fn what_the_errors_of_arguments_say() {
    let me = Membership::new(2, 4).unwrap();
    let of = |ranks: &[u32], domain_rank, window_size| {
        domain(me, &DomainSpec { id: AllocationId(7), ranks, domain_rank, window_size })
    };
    let long = "x".repeat(4096);
    all_say([
        (Membership::new(0, 65).map(drop), "nranks is 65; a group has 1 to 64 ranks"),
        (Membership::new(4, 4).map(drop), "rank is 4 in a group of 4; pass 0 to 3"),
        (of(&[], 0, 64), "the list of ranks is empty; name at least the calling rank"),
        (of(&[0, 1, 2, 3, 0], 2, 64), "the list names 5 ranks, the group has 4; name each member once"),
        (of(&[2, 9], 0, 64), "the list names rank 9 at position 1; the group has ranks 0 to 3"),
        (of(&[2, 0, 2], 0, 64), "the list names rank 2 at positions 0 and 2; name each member once"),
        (of(&[0, 2], 2, 64), "domain_rank is 2, the list has 2 ranks; pass the position of this rank in it"),
        (
            of(&[0, 2], 0, 64),
            "domain_rank 0 is rank 0 in the list, the caller is rank 2; only members call, each with its own position",
        ),
        (of(&[2], 0, 0), "window_size is 0 bytes; pass the size that the kernels use"),
        (
            window_size("window_size", usize::MAX),
            "window_size is 18446744073709551615 bytes; a window has at most 1099511627776: ask for less",
        ),
        (
            subset(me, &SubsetView { ranks: &[2], domain_rank: 0, offset: 4095, size: 2 }, 4096),
            "the slice of 2 bytes at offset 4095 does not lie in the base window of 4096 bytes; choose one that does",
        ),
        (
            Timeout::new(Duration::ZERO).map(drop),
            "a time limit of 0ns is refused; pass more than zero and at most ten years",
        ),
        (
            "soon".parse::<Timeout>().map(drop),
            "\"soon\" is not a time limit; write seconds, such as 120 or 0.5, above 0 and up to 315360000",
        ),
        (
            "64 GB".parse::<AddressSpace>().map(drop),
            "\"64 GB\" is not a size in bytes; write a number above 0, such as 64G, 512M or 4096",
        ),
        (
            rootinfo_path(Path::new("")),
            "rootinfo_path is empty; pass the same absolute or relative file path on every rank",
        ),
        (
            rootinfo_path(Path::new("a/..")),
            "rootinfo_path names no file; pass the same absolute or relative file path on every rank",
        ),
        (
            rootinfo_path(Path::new(&long)),
            "rootinfo_path is longer than 4095 bytes; pass the same absolute or relative file path on every rank",
        ),
    ] as [(Result<(), ArgumentError>, _); 17]);
    // Variables of this process, which are none of either.
    let path = std::env::var("PATH").unwrap();
    let timeout = Timeout::from_env("PATH").unwrap_err().to_string();
    let seconds = "set it to seconds, such as 120 or 0.5, above 0 and up to 315360000, or unset it";
    assert_eq!(timeout, format!("PATH is {path:?}; {seconds}"));
    let size = AddressSpace::from_env("PATH").unwrap_err().to_string();
    let bytes = "set it to a size in bytes above 0, such as 64G, 512M or 4096, or unset it";
    assert_eq!(size, format!("PATH is {path:?}; {bytes}"));
}
