//! How a tensor is cut into chunks of a schedule.

/// How the tensor is cut: the first `larger` chunks have one element more than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Elements of the tensor.
    pub elems: u64,
    /// Chunks.
    pub chunks: u32,
    /// Bytes of an element.
    pub elem_bytes: u64,
}

impl Cut {
    /// How many chunks are the larger kind.
    pub fn larger(&self) -> u32 {
        (self.elems % u64::from(self.chunks)) as u32
    }

    /// Elements of a chunk.
    pub fn len(&self, chunk: u32) -> u64 {
        self.elems / u64::from(self.chunks) + u64::from(chunk < self.larger())
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.elems == 0
    }

    /// The first element of a chunk.
    pub fn start(&self, chunk: u32) -> u64 {
        u64::from(chunk) * (self.elems / u64::from(self.chunks)) + u64::from(chunk.min(self.larger()))
    }

    /// Bytes of the larger and the smaller kind.
    pub fn sizes(&self) -> [u64; 2] {
        let small = self.elems / u64::from(self.chunks) * self.elem_bytes;
        [if self.larger() > 0 { small + self.elem_bytes } else { small }, small]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_tensor_without_a_gap() {
        for (elems, chunks) in [(0, 3), (2, 5), (17, 4), (64, 8)] {
            let cut = Cut { elems, chunks, elem_bytes: 2 };
            let mut end = 0;
            for chunk in 0..chunks {
                assert_eq!(cut.start(chunk), end);
                assert!([cut.sizes()[0], cut.sizes()[1]].contains(&(2 * cut.len(chunk))));
                end += cut.len(chunk);
            }
            assert_eq!((end, cut.is_empty()), (elems, elems == 0));
        }
    }
}
