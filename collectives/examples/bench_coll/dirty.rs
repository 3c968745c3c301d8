//! What a caller does between calls: writes its input, reads its output.

/// Writes all elements.
#[inline(never)]
pub(crate) fn write(elements: &mut [f32], round: u64) {
    elements.fill(round as f32);
    std::hint::black_box(elements);
}

/// Reads all elements.
#[inline(never)]
pub(crate) fn read(elements: &[f32]) {
    let mut sums = [0.0_f32; 64];
    let mut blocks = elements.chunks_exact(64);
    for block in &mut blocks {
        for (sum, element) in sums.iter_mut().zip(block) {
            *sum += element;
        }
    }
    let rest: f32 = blocks.remainder().iter().sum();
    std::hint::black_box((sums, rest));
}

/// Those loops without a call between them.
pub(crate) fn alone(elements: &mut [f32], rounds: u64) {
    for round in 0..rounds {
        write(elements, round);
        read(elements);
    }
}
