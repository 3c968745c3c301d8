//! What a kernel is given: the PE that it runs on.

use super::Space;
use super::error::{Form, KernelFault, Site};
use super::recorder::{Place, Recorder, Step, here};
use super::tensor::Tensor;
use crate::config::DType;
use ccl_schedule::Dir;
use std::cell::RefCell;
use std::rc::Rc;

/// One PE while its kernel is recorded.
///
/// Calls check shapes and formats at once. The first mistake ends the recording of the rank and is the error of
/// [`Kernel::record`](super::Kernel::record), with its line; later calls do nothing.
#[derive(Debug)]
pub struct Pe {
    pub(super) recorder: Rc<RefCell<Recorder>>,
    pub(super) ranks: u32,
    pub(super) tensor: Tensor,
}

/// A receive that was posted; [`Pe::wait`] gives its tensor.
#[derive(Debug)]
#[must_use = "a posted receive must be waited for"]
pub struct RecvFuture {
    dir: Dir,
    tensor: Tensor,
}

impl Pe {
    /// This rank.
    pub fn rank(&self) -> u32 {
        self.recorder.borrow().rank
    }

    /// How many ranks run the kernel.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The rank's own tensor, where it lies: input, and output when the kernel ends.
    pub fn tensor(&self) -> Tensor {
        self.tensor.clone()
    }

    /// Other memory of this PE: a handle with its space and address. The host fills it before the kernel runs, or
    /// the kernel does.
    #[track_caller]
    pub fn memory(&self, space: Space, address: u64, shape: &[u64], dtype: DType) -> Tensor {
        let site = here();
        let form = Form { shape: shape.to_vec(), dtype };
        {
            let mut recorder = self.recorder.borrow_mut();
            let (tensor_space, bytes) = recorder.tensor;
            let mut end = if space == tensor_space { bytes } else { 0 };
            if space == Space::Tcm {
                end = end.max(recorder.scratch.end());
            }
            if address < end {
                recorder.fail(site, KernelFault::Overlaps { space: super::space_name(space), address, end });
            }
        }
        Tensor::at(&self.recorder, Place::Region(space, address), form, site)
    }

    /// Copies a tensor into scratch memory.
    #[track_caller]
    pub fn load(&self, from: &Tensor) -> Tensor {
        let site = here();
        let to = Tensor::result(&self.recorder, from.form().clone(), site);
        self.check_own(from, site);
        self.recorder.borrow_mut().record(Step::Copy { from: from.value, to: to.value }, site);
        to
    }

    /// Copies a result into memory: the rank's tensor, a chunk of it, or a handle of [`Self::memory`].
    #[track_caller]
    pub fn store(&self, to: &Tensor, result: &Tensor) {
        let site = here();
        self.check_own(to, site);
        self.check_own(result, site);
        if to.form().bytes() != result.form().bytes() || to.dtype() != result.dtype() {
            let (a, b) = (to.form().clone(), result.form().clone());
            self.recorder.borrow_mut().fail(site, KernelFault::Forms { function: "store", a, b });
        }
        self.recorder.borrow_mut().record(Step::Copy { from: result.value, to: to.value }, site);
    }

    /// Sends a tensor; its data is taken at once, and the call waits only while the peer's slots are full.
    #[track_caller]
    pub fn send(&self, dir: Dir, tensor: &Tensor) {
        let site = here();
        self.check_own(tensor, site);
        self.recorder.borrow_mut().record(Step::Send(dir, tensor.value), site);
    }

    fn check_own(&self, tensor: &Tensor, site: Site) {
        if !Rc::ptr_eq(&self.recorder, &tensor.recorder) {
            self.recorder.borrow_mut().fail(site, KernelFault::Foreign);
        }
    }

    /// Waits for the next message of a direction. The tensor is the slot itself, which is free after its last use.
    #[track_caller]
    pub fn recv(&self, dir: Dir, shape: &[u64], dtype: DType) -> Tensor {
        let site = here();
        let form = Form { shape: shape.to_vec(), dtype };
        let slot = Tensor::at(&self.recorder, Place::Slot(dir), form, site);
        let mut recorder = self.recorder.borrow_mut();
        recorder.check_not_posted(dir, site);
        recorder.record(Step::Recv(dir, slot.value), site);
        drop(recorder);
        slot
    }

    /// Waits for the next message of a direction and copies it to a destination, which frees the slot.
    #[track_caller]
    pub fn recv_into(&self, dir: Dir, to: &Tensor) {
        let site = here();
        self.check_own(to, site);
        let mut recorder = self.recorder.borrow_mut();
        recorder.check_not_posted(dir, site);
        recorder.record(Step::RecvInto(dir, to.value), site);
    }

    /// Waits for the next message of a direction and adds it to a tensor, which frees the slot.
    #[track_caller]
    pub fn recv_add(&self, dir: Dir, to: &mut Tensor) {
        let site = here();
        self.check_own(to, site);
        let mut recorder = self.recorder.borrow_mut();
        recorder.check_not_posted(dir, site);
        recorder.record(Step::RecvAdd(dir, to.value), site);
    }

    /// Posts a receive and goes on; the message is copied into scratch memory as soon as it is there. One for each
    /// direction at a time.
    #[track_caller]
    pub fn recv_async(&self, dir: Dir, shape: &[u64], dtype: DType) -> RecvFuture {
        let site = here();
        let tensor = Tensor::result(&self.recorder, Form { shape: shape.to_vec(), dtype }, site);
        let mut recorder = self.recorder.borrow_mut();
        recorder.check_not_posted(dir, site);
        recorder.posted.push((dir, tensor.value, site));
        recorder.record(Step::Post(dir, tensor.value), site);
        drop(recorder);
        RecvFuture { dir, tensor }
    }

    /// Waits for a posted receive.
    #[track_caller]
    pub fn wait(&self, future: RecvFuture) -> Tensor {
        let mut recorder = self.recorder.borrow_mut();
        recorder.posted.retain(|posted| posted.1 != future.tensor.value);
        recorder.record(Step::Wait(future.dir), here());
        drop(recorder);
        future.tensor
    }
}

/// The smallest number of blocks of size `block` that hold `n`.
pub fn ceil_div(n: u64, block: u64) -> u64 {
    n.div_ceil(block)
}
