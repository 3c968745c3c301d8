//! Any bytes as a tensor descriptor or a context: refused, or every address that follows from them is in
//! bounds.
#![no_main]

use comm_context::abi::{CommContext, DeviceAddr, TensorDesc};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind % 2 {
        0 => tensor(bytes),
        _ => context(bytes),
    }
});

fn tensor(bytes: &[u8]) {
    let desc = match TensorDesc::decode(bytes) {
        Ok(desc) => desc,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(desc.as_bytes(), &bytes[..128]);
    let (Ok(dtype), Ok(shape)) = (desc.dtype(), desc.shape()) else { panic!("{desc:?}") };
    // In 128 bits, which cannot overflow: the last element ends inside the buffer, and the buffer inside the
    // address space.
    let span = |(len, stride): (&u32, &u32)| u128::from(len.saturating_sub(1)) * u128::from(*stride);
    let empty = shape.contains(&0);
    let last = shape.iter().zip(&desc.strides).map(span).sum::<u128>();
    let elements = if empty { 0 } else { last + 1 };
    assert_eq!(elements, u128::from(desc.extent));
    let end = (u128::from(desc.start_offset) + elements) * u128::from(dtype.size());
    assert!(end <= u128::from(desc.size));
    assert!(desc.addr > 0 && u128::from(desc.addr) + u128::from(desc.size) <= 1 << 64);
    assert!(desc.addr.is_multiple_of(dtype.size()));
    assert!(desc.strides[..shape.len()].iter().all(|stride| *stride > 0));
    // Rebuilt from its own fields it is the same, up to fields that are not read.
    let again = TensorDesc::builder(DeviceAddr(desc.addr), desc.size, dtype, shape)
        .strides(&desc.strides[..shape.len()])
        .start_offset(desc.start_offset)
        .build();
    assert!(
        again.is_ok_and(|again| again.extent == desc.extent && again.is_contiguous == desc.is_contiguous)
    );
}

fn context(bytes: &[u8]) {
    let context = match CommContext::decode(bytes) {
        Ok(context) => context,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(context.as_bytes(), &bytes[..1056]);
    assert!(context.rank() < context.nranks() && context.nranks() <= 64);
    assert!(context.window_in(context.nranks()).is_err());
    let Ok(base) = context.window_in(context.rank()) else { panic!("{context:?}") };
    // The bytes after the context choose an address and a slice.
    let word = |at: usize| {
        bytes
            .get(at..at + 8)
            .map_or(at as u64, |word| u64::from_le_bytes(std::array::from_fn(|byte| word[byte])))
    };
    let (offset, size) = (word(1056), word(1064));
    for peer in 0..context.nranks() {
        let Ok(theirs) = context.window_in(peer) else { panic!("{context:?}") };
        for local in [base.0, base.0 + (context.win_size - 1), base.0.wrapping_add(offset)] {
            if let Ok(remote) = context.remote(DeviceAddr(local), peer) {
                assert_eq!(remote.0 - theirs.0, local - base.0);
                assert!(remote.0 - theirs.0 < context.win_size);
            }
        }
        if let Ok(view) = context.subset(&[peer, context.rank()], 1, offset, size) {
            assert_eq!((view.rank(), view.nranks(), view.win_size), (1, 2, size));
            assert!(view.window_in(0).is_ok_and(|start| start.0 - theirs.0 + size <= context.win_size));
        }
    }
}
