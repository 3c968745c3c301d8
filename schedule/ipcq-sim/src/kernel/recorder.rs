//! What a kernel does on one rank, as it is recorded: operations on values, each with its line.

use super::error::{Form, KernelError, KernelFault, Site};
use super::scratch::Scratch;
use super::{MAX_STEPS, Space};
use ccl_schedule::{Dir, Function};
use std::panic::Location;

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The whole tensor of the rank.
    Whole,
    /// A chunk of it.
    Chunk(u32),
    /// A result, in the scratch memory at this address.
    Scratch(u64),
    /// Memory that the kernel named.
    Region(Space, u64),
    /// A slot of the queue of this direction.
    Slot(Dir),
}

/// A value: where it lies, and what it is.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) place: Place,
    pub(super) form: Form,
    pub(super) site: Site,
}

/// An argument of a computation: a value, a number, or none.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    None,
    Value(u32),
    Scalar(f32),
}

/// One operation on values.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Send(Dir, u32),
    /// Into a slot value.
    Recv(Dir, u32),
    RecvInto(Dir, u32),
    RecvAdd(Dir, u32),
    Post(Dir, u32),
    Wait(Dir),
    Copy {
        from: u32,
        to: u32,
    },
    AddTo {
        from: u32,
        to: u32,
    },
    Math {
        function: Function,
        args: [Arg; 3],
        to: u32,
    },
}

impl Step {
    /// The values that are read.
    pub(super) fn reads(&self) -> Vec<u32> {
        match *self {
            Step::Send(_, value) | Step::RecvAdd(_, value) => vec![value],
            Step::Copy { from, .. } => vec![from],
            Step::AddTo { from, to } => vec![from, to],
            Step::Math { args, .. } => {
                let value = |arg: Arg| if let Arg::Value(value) = arg { Some(value) } else { None };
                args.into_iter().filter_map(value).collect()
            }
            Step::Recv(..) | Step::RecvInto(..) | Step::Post(..) | Step::Wait(_) => Vec::new(),
        }
    }

    /// The value that is written, other than a slot.
    pub(super) fn writes(&self) -> Option<u32> {
        match *self {
            Step::RecvInto(_, to) | Step::RecvAdd(_, to) | Step::Post(_, to) => Some(to),
            Step::Copy { to, .. } | Step::AddTo { to, .. } | Step::Math { to, .. } => Some(to),
            Step::Send(..) | Step::Recv(..) | Step::Wait(_) => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) kernel: String,
    pub(super) rank: u32,
    pub(super) steps: Vec<(Step, Site)>,
    pub(super) values: Vec<Value>,
    pub(super) scratch: Scratch,
    /// Bytes of the tensor, and the space that it lies in.
    pub(super) tensor: (Space, u64),
    /// Chunks of the tensor, as soon as it has been cut.
    pub(super) cut: Option<(u32, Site)>,
    /// Posted receives: direction, value, line.
    pub(super) posted: Vec<(Dir, u32, Site)>,
    /// The first thing that is wrong; nothing is recorded after it.
    pub(super) error: Option<KernelError>,
}

impl Recorder {
    pub(super) fn fail(&mut self, site: Site, what: KernelFault) {
        let error = KernelError::new(&self.kernel, Some(site), Some(self.rank), what);
        self.error.get_or_insert(error);
    }

    pub(super) fn record(&mut self, step: Step, site: Site) {
        if self.error.is_some() {
            return;
        }
        if self.steps.len() >= MAX_STEPS {
            return self.fail(site, KernelFault::TooLong(MAX_STEPS));
        }
        let written = step.writes().map(|value| self.values[value as usize].place);
        if let Some(Place::Slot(_)) = written {
            return self.fail(site, KernelFault::WritesSlot);
        }
        self.steps.push((step, site));
    }

    pub(super) fn value(&mut self, place: Place, form: Form, site: Site) -> u32 {
        self.values.push(Value { place, form, site });
        self.values.len() as u32 - 1
    }

    /// Room for a result; address 0 after an error.
    pub(super) fn allocate(&mut self, form: &Form, site: Site) -> u64 {
        if let Some(address) = self.scratch.take(form.bytes()) {
            return address;
        }
        let (need, free, size) = (form.bytes(), self.scratch.largest(), self.scratch.size());
        self.fail(site, KernelFault::ScratchFull { need, free, size });
        self.scratch.end()
    }

    /// A receive from a direction begins: nothing may be posted there.
    pub(super) fn check_not_posted(&mut self, dir: Dir, site: Site) {
        if let Some((_, _, posted)) = self.posted.iter().find(|posted| posted.0 == dir) {
            let posted = *posted;
            self.fail(site, KernelFault::Posted { dir, posted });
        }
    }

    /// The tensor is cut here.
    pub(super) fn cut(&mut self, chunks: u32, site: Site) {
        match self.cut {
            Some((other, _)) if other != chunks => self.fail(site, KernelFault::Cuts { this: chunks, other }),
            _ => self.cut = Some((chunks, site)),
        }
    }
}

/// The caller's line.
#[track_caller]
pub(super) fn here() -> Site {
    Site::of(Location::caller())
}
