//! Hostile bytes: they decode to a consistent value, or are refused.

use comm_context::abi::{CommContext, DType, DeviceAddr, TensorDesc};
use proptest::prelude::*;

fn some_context() -> impl Strategy<Value = CommContext> {
    (prop::collection::vec(1u64..1 << 48, 1..=64), any::<prop::sample::Index>(), 1u64..1 << 40).prop_map(
        |(bases, rank, size)| {
            let bases: Vec<_> = bases.into_iter().map(DeviceAddr).collect();
            CommContext::new(rank.index(bases.len()) as u32, &bases, size).unwrap()
        },
    )
}

fn some_tensor() -> impl Strategy<Value = TensorDesc> {
    let dims = prop::collection::vec((0u32..9, 1u32..100), 0..=5);
    (dims, 0..DType::ALL.len(), 0u64..1000, 1u64..1 << 40).prop_map(|(dims, dtype, offset, addr)| {
        let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
        TensorDesc::builder(DeviceAddr(addr * 8), 1 << 20, DType::ALL[dtype], &shape)
            .strides(&strides)
            .start_offset(offset)
            .build()
            .unwrap()
    })
}

/// What a caller relies on after a successful decode.
fn is_consistent(context: &CommContext) -> Result<(), TestCaseError> {
    prop_assert!(context.rank() < context.nranks() && context.nranks() <= 64);
    let own = context.window_in(context.rank()).unwrap();
    let last = DeviceAddr(own.0 + context.win_size - 1);
    for peer in 0..context.nranks() {
        let base = context.window_in(peer).unwrap();
        prop_assert_eq!(context.remote(own, peer), Ok(base));
        prop_assert_eq!(context.remote(last, peer).map(|at| at.0 - base.0), Ok(context.win_size - 1));
    }
    Ok(())
}

fn fits_its_buffer(desc: &TensorDesc) -> Result<(), TestCaseError> {
    let element = u128::from(desc.dtype().unwrap().size());
    let shape = desc.shape().unwrap();
    if !shape.contains(&0) {
        let last: u128 = shape.iter().zip(desc.strides).map(|(n, s)| u128::from(n - 1) * u128::from(s)).sum();
        prop_assert!((u128::from(desc.start_offset) + last + 1) * element <= u128::from(desc.size));
    }
    Ok(())
}

proptest! {
    // Miri is slow and has no file system; failing cases are printed instead.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 4 } else { 256 },
        ..ProptestConfig::default()
    })]

    // CC-4
    #[test]
    fn f29_any_bytes_are_a_context_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 1000..1100)) {
        if let Ok(context) = CommContext::decode(&bytes) {
            is_consistent(&context)?;
        }
    }

    // CC-4, CC-2
    #[test]
    fn f29_a_context_with_any_byte_changed_is_consistent_or_is_refused(
        context in some_context(), at in 0usize..1056, byte in any::<u8>(),
    ) {
        prop_assert_eq!(CommContext::decode(context.as_bytes()), Ok(context));
        let mut bytes = context.as_bytes().to_vec();
        bytes[at] = byte;
        if let Ok(context) = CommContext::decode(&bytes) {
            is_consistent(&context)?;
        }
    }

    // CC-4
    #[test]
    fn f29_any_bytes_are_a_tensor_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 100..200)) {
        if let Ok(desc) = TensorDesc::decode(&bytes) {
            fits_its_buffer(&desc)?;
        }
    }

    // CC-4
    #[test]
    fn f29_a_tensor_with_any_byte_changed_fits_its_buffer_or_is_refused(
        desc in some_tensor(), at in 0usize..128, byte in any::<u8>(),
    ) {
        prop_assert_eq!(TensorDesc::decode(desc.as_bytes()), Ok(desc));
        let mut bytes = desc.as_bytes().to_vec();
        bytes[at] = byte;
        if let Ok(desc) = TensorDesc::decode(&bytes) {
            fits_its_buffer(&desc)?;
            prop_assert!([desc.manual_dep, desc.is_contiguous, desc.address_space].iter().all(|flag| *flag <= 1));
        }
    }
}
