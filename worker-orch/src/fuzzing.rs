//! What the fuzz target `worker_frames` asserts. It is here because the decoders are private, and compiled
//! for fuzzing only.

use crate::shared::{
    BODY_AT, Definition, Frame, LaunchSpec, ReceivedFrame, SLOT_BYTES, as_bytes, decode_spans, encode_spans,
};
use shared_memory::Region;
use std::sync::Arc;

/// A slot of a ring, as a child reads it.
pub fn frame(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(SLOT_BYTES)];
    let claimed = bytes.first_chunk::<BODY_AT>().and_then(as_bytes::used);
    assert!(claimed.is_none_or(|used| (BODY_AT..=SLOT_BYTES).contains(&used)));
    let mut read = ReceivedFrame::default();
    as_bytes::decode(&mut read, bytes);
    assert!(read.prerequisites.len() + read.scalars.len() <= SLOT_BYTES / 8);
    assert!(read.blob.len() <= SLOT_BYTES && read.tensors.len() <= SLOT_BYTES / 128);
    let Some(kind) = read.kind else { return };
    assert!(claimed.is_some_and(|used| used <= bytes.len()));
    let mut slot = vec![0; SLOT_BYTES];
    let again = Frame {
        kind,
        run: read.run,
        program: read.program,
        collectives: read.collectives,
        blocks: read.blocks,
        prerequisites: &read.prerequisites,
        scalars: &read.scalars,
        blob: &read.blob,
        tensors: &read.tensors,
    };
    assert!(as_bytes::write(&again, &mut slot).is_ok());
    assert_eq!(slot.first_chunk().and_then(as_bytes::used), claimed);
    let mut second = ReceivedFrame::default();
    as_bytes::decode(&mut second, &slot);
    assert_eq!((second.kind, second.run, second.program), (read.kind, read.run, read.program));
    assert_eq!((second.collectives, second.blocks), (read.collectives, read.blocks));
    assert_eq!((second.prerequisites, second.scalars), (read.prerequisites, read.scalars));
    assert_eq!((second.blob, second.tensors), (read.blob, read.tensors));
}

/// The blob of a `Spans` frame.
pub fn spans(bytes: &[u8]) {
    if let Some(spans) = decode_spans(bytes) {
        assert_eq!(encode_spans(&spans), bytes);
    }
}

/// The blob of a `Register` frame.
pub fn definition(bytes: &[u8]) {
    if let Some(definition) = Definition::decode(bytes) {
        assert_eq!(definition.encode(), bytes);
        let _ = definition.name();
    }
}

thread_local! {
    static HEAP: Arc<Region> = Arc::new(
        Region::create("fuzzed", 4096).unwrap_or_else(|error| panic!("{error}"))
    );
}

/// The launch spec of a child that is started by exec, and the configuration that it makes of it.
pub fn launch_spec(bytes: &[u8]) {
    let Some(spec) = LaunchSpec::decode(bytes) else { return };
    // Each takes at least a number: no count makes the child allocate more than the bytes that came.
    assert!(spec.ranges.len() + spec.programs.len() <= bytes.len() / 8);
    assert!(spec.number < spec.children && spec.heaps <= spec.ranges.len());
    assert_eq!(LaunchSpec::decode(&spec.encode()).as_ref(), Some(&spec));
    let Some(chip) = spec.chip else { return };
    let config = HEAP.with(|heap| chip.config(std::slice::from_ref(heap)));
    if let Some(config) = config {
        let parts = config.parts_by_name().count();
        assert!(parts <= bytes.len() / 8);
        if let Ok(offsets) = config.layout() {
            assert_eq!(offsets.len(), parts);
            assert!(offsets.iter().all(|at| *at < config.window_size()));
        }
    }
}
