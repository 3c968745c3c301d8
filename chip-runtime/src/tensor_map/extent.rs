//! The memory of a view: its byte range, and its box where that says more.

use comm_context::abi::{TENSOR_MAX_DIMS, TensorDesc};

/// The memory of a view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Extent {
    pub(super) lo: u64,
    pub(super) hi: u64,
    /// Whether it touches every byte of the range.
    pub(super) dense: bool,
    pub(super) place: Option<(Grid, Bounds)>,
}

/// What the strides of a view make of its buffer. Views of one grid are boxes, which are apart or have an element in
/// common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Grid {
    pub(super) addr: u64,
    /// The end of the buffer.
    pub(super) end: u64,
    /// Bytes of an element.
    size: u8,
    ndims: u8,
    /// Zero where there is no dimension.
    strides: [u32; TENSOR_MAX_DIMS],
}

/// A box in a grid. Where there is no dimension: from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    pub(super) first: [u32; TENSOR_MAX_DIMS],
    pub(super) end: [u32; TENSOR_MAX_DIMS],
}

impl Extent {
    /// That of a checked descriptor; `None` if it is empty.
    pub(crate) fn of(desc: &TensorDesc, element: u64) -> Option<Self> {
        if desc.extent == 0 {
            return None;
        }
        let lo = desc.addr + desc.start_offset * element;
        let hi = lo + desc.extent * element;
        let place = if desc.ndims > 1 { place(desc, element) } else { None };
        Some(Self { lo, hi, dense: desc.is_contiguous == 1, place })
    }

    #[cfg(test)]
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let apart = match (&self.place, &other.place) {
            (Some((grid, one)), Some((other, two))) => grid == other && one.is_apart(two),
            _ => false,
        };
        self.lo < other.hi && other.lo < self.hi && !apart
    }
}

/// The grid of a view and its box there. `None` if it is not one, since a row that runs over the end of the row below would
/// count for both, or if it says no more than the byte range: a view of whole rows meets each box whose range overlaps its own.
fn place(desc: &TensorDesc, element: u64) -> Option<(Grid, Bounds)> {
    let ndims = desc.ndims as usize;
    let mut strides = [0; TENSOR_MAX_DIMS];
    strides[..ndims].copy_from_slice(&desc.strides[..ndims]);
    let (addr, end) = (desc.addr, desc.addr + desc.size);
    let grid = Grid { addr, end, size: element as u8, ndims: ndims as u8, strides };
    let mut bounds = Bounds { first: [0; TENSOR_MAX_DIMS], end: [1; TENSOR_MAX_DIMS] };
    let mut rest = desc.start_offset;
    let mut whole_rows = true;
    for dim in 0..ndims {
        let (stride, len) = (u64::from(strides[dim]), u64::from(desc.shapes[dim]));
        let first = rest / stride;
        rest %= stride;
        if dim > 0 {
            let row = u64::from(strides[dim - 1]);
            if (first + len) * stride > row {
                return None;
            }
            whole_rows &= len * stride == row;
        }
        bounds.first[dim] = u32::try_from(first).ok()?;
        bounds.end[dim] = u32::try_from(first + len).ok()?;
    }
    (rest == 0 && !whole_rows).then_some((grid, bounds))
}

impl Bounds {
    /// Whether the two have no element in common.
    pub(super) fn is_apart(&self, other: &Self) -> bool {
        let dims = 0..TENSOR_MAX_DIMS;
        dims.into_iter().any(|dim| self.end[dim] <= other.first[dim] || other.end[dim] <= self.first[dim])
    }

    /// The smallest box around both.
    pub(super) fn around(&self, other: &Self) -> Self {
        Self {
            first: std::array::from_fn(|dim| self.first[dim].min(other.first[dim])),
            end: std::array::from_fn(|dim| self.end[dim].max(other.end[dim])),
        }
    }
}
