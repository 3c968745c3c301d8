//! Tensors of a kernel: handles with a shape and a format, and what can be computed from them.

use super::error::{Form, KernelFault, Site};
use super::recorder::{Arg, Place, Recorder, Step, here};
use crate::config::DType;
use crate::plan::Cut;
use ccl_schedule::Function;
use std::cell::RefCell;
use std::ops::{Add, AddAssign, Div, Mul, Sub};
use std::rc::Rc;

/// A tensor on one PE: the rank's own one, a chunk of it, a result, a slot of a queue, or named memory.
///
/// A handle is cheap to clone. The scratch memory of a result is free again when its last handle is dropped, and a slot after
/// its last use.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(super) recorder: Rc<RefCell<Recorder>>,
    pub(super) value: u32,
    form: Form,
    place: Place,
    _lease: Option<Rc<Lease>>,
}

/// Scratch memory of a result.
#[derive(Debug)]
struct Lease {
    recorder: Rc<RefCell<Recorder>>,
    address: u64,
    bytes: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut recorder = self.recorder.borrow_mut();
        // After an error there may have been no memory for it.
        if self.address < recorder.scratch.end() {
            recorder.scratch.give(self.address, self.bytes);
        }
    }
}

impl Tensor {
    pub(super) fn at(recorder: &Rc<RefCell<Recorder>>, place: Place, form: Form, site: Site) -> Tensor {
        let value = recorder.borrow_mut().value(place, form.clone(), site);
        Tensor { recorder: recorder.clone(), value, form, place, _lease: None }
    }

    /// A result in scratch memory, not yet written.
    pub(super) fn result(recorder: &Rc<RefCell<Recorder>>, form: Form, site: Site) -> Tensor {
        let address = recorder.borrow_mut().allocate(&form, site);
        let lease = Rc::new(Lease { recorder: recorder.clone(), address, bytes: form.bytes() });
        Tensor { _lease: Some(lease), ..Tensor::at(recorder, Place::Scratch(address), form, site) }
    }

    /// The dimensions, outermost first.
    pub fn shape(&self) -> &[u64] {
        &self.form.shape
    }

    /// The number format.
    pub fn dtype(&self) -> DType {
        self.form.dtype
    }

    pub(super) fn form(&self) -> &Form {
        &self.form
    }

    /// Chunk `chunk` of the rank's tensor, cut into `of`: the first ones have one element more where it does not
    /// come out even. A kernel has one cut, the same on all ranks.
    #[track_caller]
    pub fn chunk(&self, chunk: u32, of: u32) -> Tensor {
        let site = here();
        let mut recorder = self.recorder.borrow_mut();
        if self.place != Place::Whole || of == 0 || chunk >= of {
            recorder.fail(site, KernelFault::NoChunk { chunk, of });
        } else {
            recorder.cut(of, site);
        }
        let cut = Cut { elems: self.form.len(), chunks: of.max(1), elem_bytes: self.form.dtype.bytes() };
        let form = Form { shape: vec![cut.len(chunk)], dtype: self.form.dtype };
        drop(recorder);
        Tensor::at(&self.recorder, Place::Chunk(chunk), form, site)
    }

    /// The larger of two values, element by element; NaN when one is.
    #[track_caller]
    pub fn maximum(&self, other: &Tensor) -> Tensor {
        self.with(Function::Maximum, other, here())
    }

    /// The smaller of two values, element by element; NaN when one is.
    #[track_caller]
    pub fn minimum(&self, other: &Tensor) -> Tensor {
        self.with(Function::Minimum, other, here())
    }

    /// The smallest whole numbers that are not below the quotients.
    #[track_caller]
    pub fn ceil_div(&self, other: &Tensor) -> Tensor {
        self.with(Function::CeilDiv, other, here())
    }

    /// `self * factor + addend`, rounded once.
    #[track_caller]
    pub fn fma(&self, factor: &Tensor, addend: &Tensor) -> Tensor {
        let site = here();
        self.check_alike(Function::Fma, factor, site);
        self.check_alike(Function::Fma, addend, site);
        let args = [self, factor, addend].map(|tensor| Arg::Value(tensor.value));
        self.compute(Function::Fma, args, site)
    }

    /// Every value, not below `low` and not above `high`.
    #[track_caller]
    pub fn clamp(&self, low: f32, high: f32) -> Tensor {
        let args = [Arg::Value(self.value), Arg::Scalar(low), Arg::Scalar(high)];
        self.compute(Function::Clamp, args, here())
    }

    /// exp(x) over the sum of exp(x) along the last dimension.
    #[track_caller]
    pub fn softmax(&self) -> Tensor {
        let row = self.form.shape.last().copied().unwrap_or(1) as u32;
        self.compute(Function::Softmax(row), [Arg::Value(self.value), Arg::None, Arg::None], here())
    }

    fn with(&self, function: Function, other: &Tensor, site: Site) -> Tensor {
        self.check_alike(function, other, site);
        self.compute(function, [Arg::Value(self.value), Arg::Value(other.value), Arg::None], site)
    }

    fn with_number(&self, function: Function, number: f32, site: Site) -> Tensor {
        self.compute(function, [Arg::Value(self.value), Arg::Scalar(number), Arg::None], site)
    }

    fn compute(&self, function: Function, args: [Arg; 3], site: Site) -> Tensor {
        let to = Tensor::result(&self.recorder, self.form.clone(), site);
        self.recorder.borrow_mut().record(Step::Math { function, args, to: to.value }, site);
        to
    }

    /// Both are tensors of this rank with one shape and one format.
    pub(super) fn check_alike(&self, function: Function, other: &Tensor, site: Site) {
        if !Rc::ptr_eq(&self.recorder, &other.recorder) {
            self.recorder.borrow_mut().fail(site, KernelFault::Foreign);
        } else if self.form != other.form {
            let (a, b) = (self.form.clone(), other.form.clone());
            self.recorder.borrow_mut().fail(site, KernelFault::Forms { function: function.name(), a, b });
        }
    }
}

macro_rules! operators {
    ($($operator:ident $method:ident $function:ident,)*) => {$(
        impl $operator for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                self.with(Function::$function, other, here())
            }
        }
        impl $operator<f32> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, number: f32) -> Tensor {
                self.with_number(Function::$function, number, here())
            }
        }
    )*};
}
operators! { Add add Add, Sub sub Sub, Mul mul Mul, Div div Div, }

impl AddAssign<&Tensor> for Tensor {
    /// Adds in place: the memory of the left side changes, also where it is the rank's own tensor.
    #[track_caller]
    fn add_assign(&mut self, other: &Tensor) {
        let site = here();
        self.check_alike(Function::Add, other, site);
        self.recorder.borrow_mut().record(Step::AddTo { from: other.value, to: self.value }, site);
    }
}
