//! One call under way: which step comes next, and what it waits for.
//!
//! A call is a sequence of steps that all ranks number alike. In every step a rank is one of three things ([`Role`]). It *writes* a step
//! (stages what others read, and publishes it) and *reads* it (waits for others, and takes what they staged). Writing and
//! reading are two counters, because a started call may write a step long before it reads it.

use crate::engine::{Blocked, Engine};
use crate::error::CollError;
use crate::kernels::{Copier, Fold};
use crate::moves::UpTo64;
use crate::plan::{Plan, Shape};
use crate::request::{Kind, Request};
use fault_points::fault_point;
use mailbox_atomics::{INLINE_WORDS, Use};

/// What a rank does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Writes, then reads what all others wrote.
    Exchange,
    /// Writes for these ranks, and reads nothing.
    Source(u64),
    /// Reads what these ranks wrote, and writes only that it has.
    Sink(u64),
}

/// Where the data of an all-reduce goes through. Known when all ranks have said where theirs lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// Not known yet.
    Undecided,
    /// Through the staging area.
    Staged,
    /// The same, one step later: some ranks had not staged their first piece, because their data lies in a window.
    StagedLate,
    /// From window to window.
    Windows,
}

/// A place in a window as it crosses processes: 0 for none, or one more than the offset.
pub(crate) type Place = u64;

/// A call under way.
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) plan: Plan,
    pub(crate) number: u64,
    pub(crate) fold: Option<Fold>,
    pub(crate) copier: Copier,
    chain: u32,
    /// The steps and pieces of the group before the first of this call.
    base: u64,
    pub(crate) first_piece: u64,
    /// How many steps were written, and how many read.
    written: u64,
    read: u64,
    /// The ranks whose step was found, of the step that is read next.
    seen: u64,
    route: Route,
    /// Where this rank's input and output lie, if in the window.
    pub(crate) own_places: [Place; 2],
    /// The same of all ranks, as soon as they have said it.
    pub(crate) places: UpTo64<[Place; 2]>,
    /// Whether the first piece was staged in the first step.
    staged_first: bool,
}

impl Call {
    /// A call that was checked. It takes its number and its steps when it is [placed](Self::place).
    #[inline]
    pub(crate) fn new(engine: &Engine<'_>, request: Request) -> Self {
        let nranks = engine.nranks();
        let most = if request.counts.is_null() { 0 } else { crate::moves::largest_count(&request, nranks) };
        let plan = engine.setting.plan(&request, most);
        let fold = request.op.and_then(|op| engine.kernels.fold(request.dtype, op));
        let own_places = if plan.places == 0 { [0; 2] } else { crate::moves::own_places(engine, &request) };
        let route = match (plan.shape, plan.places) {
            (Shape::Matrix, _) | (_, 2) => Route::Undecided,
            _ => Route::Staged,
        };
        Self {
            request,
            plan,
            number: 0,
            fold,
            copier: engine.copier,
            chain: 0,
            base: 0,
            first_piece: 0,
            written: 0,
            read: 0,
            seen: 0,
            route,
            own_places,
            places: UpTo64::new(),
            staged_first: false,
        }
    }

    /// Gives the call its number, and the steps and pieces after those of all earlier calls. Not before these have written all of
    /// theirs: so the lines of the steps bound how many calls a rank has on record that its peers have not made.
    #[inline]
    pub(crate) fn place(&mut self, engine: &mut Engine<'_>) {
        (self.number, self.chain) = engine.begin(&self.request);
        (self.base, self.first_piece) = (engine.step, engine.piece);
    }

    /// Bytes that a call like this one stages first.
    #[inline]
    pub(crate) fn staged_bytes(&self) -> usize {
        match (self.plan.shape, self.route) {
            (Shape::Pieces, Route::Staged) => self.plan.block * self.request.dtype.size(),
            _ => 0,
        }
    }

    /// Lets the engine count the steps and pieces of this call.
    #[inline]
    pub(crate) fn settle(&self, engine: &mut Engine<'_>) {
        engine.step = self.base + self.steps();
        engine.piece = self.first_piece
            + match (self.route, self.plan.shape) {
                (Route::Windows, _) => 0,
                (_, Shape::Matrix) => self.plan.pieces + 1,
                _ => self.plan.pieces,
            };
    }

    /// How many steps the call takes; as good as infinite while that is not known.
    #[inline]
    fn steps(&self) -> u64 {
        let staged = match self.plan.shape {
            Shape::Alone => 0,
            Shape::Inline => 1,
            Shape::Pieces => self.plan.pieces,
            Shape::Slices => 2 * self.plan.pieces,
            Shape::Matrix => 1 + self.plan.pieces,
        };
        match self.route {
            Route::Undecided => u64::MAX,
            Route::Staged => staged,
            Route::StagedLate => 1 + staged,
            Route::Windows => 2,
        }
    }

    /// Goes as far as it can without waiting. `None` when the call is complete.
    #[inline]
    pub(crate) fn advance<'c>(&mut self, engine: &mut Engine<'c>) -> Result<Option<Blocked<'c>>, CollError> {
        if self.plan.shape == Shape::Alone {
            self.copy_alone();
            return Ok(None);
        }
        loop {
            let at = self.written.min(self.read);
            if at >= self.steps() {
                let drained = self.drain(engine)?;
                if drained.is_none() {
                    self.settle(engine);
                }
                return Ok(drained);
            }
            let role = self.role(engine, at);
            let reads = match role {
                Role::Sink(_) => self.read == at,
                _ => self.written > at,
            };
            let blocked = if reads {
                self.stage_next(engine, at, role)?;
                self.try_read(engine, role)?
            } else {
                self.try_write(engine, role)?
            };
            if blocked.is_some() {
                return Ok(blocked);
            }
        }
    }

    /// Before it collects the slices of a piece, a rank stages the next piece if it can: the others reduce theirs meanwhile, and none
    /// of them waits for what the other does in between.
    #[inline]
    fn stage_next(&mut self, engine: &mut Engine<'_>, at: u64, role: Role) -> Result<(), CollError> {
        let collects = self.plan.shape == Shape::Slices && role == Role::Exchange && self.slice_step(at) == 1;
        if collects && self.written == at + 1 && self.written < self.steps() {
            // Where a reader is not done with the half, it has to be waited for after this step, and not before.
            let _blocked = self.try_write(engine, role)?;
        }
        Ok(())
    }

    /// Writes the next step if that is possible now. `Ok(false)` when this rank has to read something first.
    pub(crate) fn write_ahead<'c>(&mut self, engine: &mut Engine<'c>) -> Result<Ahead<'c>, CollError> {
        let at = self.written;
        if at >= self.steps() {
            return Ok(Ahead::Done);
        }
        let role = self.role(engine, at);
        let needs = match role {
            Role::Sink(_) => at + 1,
            // The second step of a slice publishes what reading the first one gave; and after the first step it may turn out
            // that the data lies in windows.
            _ if self.plan.shape == Shape::Slices && self.slice_step(at) == 1 => at,
            _ if at > 0 && !self.decided_early() => 1,
            _ => 0,
        };
        if self.read < needs {
            return Ok(Ahead::ReadFirst);
        }
        Ok(self.try_write(engine, role)?.map_or(Ahead::Wrote, Ahead::Blocked))
    }

    /// Reads the next step if that is possible now.
    pub(crate) fn read_ahead<'c>(&mut self, engine: &mut Engine<'c>) -> Result<Ahead<'c>, CollError> {
        let at = self.read;
        if at >= self.steps() {
            return Ok(self.drain(engine)?.map_or(Ahead::Done, Ahead::Blocked));
        }
        let role = self.role(engine, at);
        if self.written <= at && !matches!(role, Role::Sink(_)) {
            return Ok(Ahead::WriteFirst);
        }
        Ok(self.try_read(engine, role)?.map_or(Ahead::Wrote, Ahead::Blocked))
    }

    fn decided_early(&self) -> bool {
        !(self.plan.places == 2 || self.plan.shape == Shape::Matrix)
    }

    /// Which of the two steps of a slice step `at` is.
    fn slice_step(&self, at: u64) -> u64 {
        (at - u64::from(self.route == Route::StagedLate && at > 0)) & 1
    }

    #[inline]
    fn role(&self, engine: &Engine<'_>, at: u64) -> Role {
        let (others, root) = (engine.progress.others(), self.request.root as usize);
        let to_root = || if engine.me == root { Role::Sink(others) } else { Role::Source(1 << root) };
        match self.request.kind {
            Kind::Broadcast | Kind::Scatter => {
                if engine.me == root {
                    Role::Source(others)
                } else {
                    Role::Sink(1 << root)
                }
            }
            Kind::Gather => to_root(),
            Kind::Reduce if self.plan.shape != Shape::Slices || self.slice_step(at) == 1 => to_root(),
            _ => Role::Exchange,
        }
    }

    #[inline]
    fn try_write<'c>(
        &mut self,
        engine: &mut Engine<'c>,
        role: Role,
    ) -> Result<Option<Blocked<'c>>, CollError> {
        let at = self.written;
        let step = self.base + 1 + at;
        if let Some(blocked) = engine.free(engine.progress.line_use(step), self.number)? {
            return Ok(Some(blocked));
        }
        let (readers, acknowledged) = match role {
            Role::Exchange => (engine.progress.others(), false),
            Role::Source(readers) => (readers, true),
            Role::Sink(_) => (0, false),
        };
        let used = Use { step, readers, acknowledged, hash: self.chain };
        let mut payload = [0; INLINE_WORDS];
        let mut words = 0;
        if !matches!(role, Role::Sink(_)) {
            if let Some(blocked) = self.stage(engine, at, used)? {
                return Ok(Some(blocked));
            }
            fault_point!("coll.staged");
            if self.plan.shape == Shape::Inline {
                words = self.pack(engine, &mut payload);
            } else if at == 0 && self.plan.places > 0 {
                payload[..2].copy_from_slice(&self.own_places);
                words = 2;
            }
        }
        let note = engine.note();
        engine.progress.publish(step, self.chain, note, &payload[..words], used);
        self.written += 1;
        fault_point!("coll.published");
        if matches!(role, Role::Source(_)) && self.plan.pieces > 1 {
            engine.progress.notify();
        }
        Ok(None)
    }

    /// Stages what the step announces, if anything.
    #[inline]
    fn stage<'c>(
        &mut self,
        engine: &mut Engine<'c>,
        at: u64,
        used: Use,
    ) -> Result<Option<Blocked<'c>>, CollError> {
        let Some((piece, last_step)) = self.piece_to_stage(at) else { return Ok(None) };
        let half = mailbox_atomics::Halves::of(self.first_piece + piece);
        if let Some(blocked) = engine.free(engine.halves.last_use(half), self.number)? {
            return Ok(Some(blocked));
        }
        fault_point!("coll.staging");
        self.fill(engine, piece, half);
        let used = match self.plan.shape {
            Shape::Slices => Use {
                step: used.step + last_step - at,
                readers: engine.progress.others(),
                acknowledged: false,
                ..used
            },
            _ => used,
        };
        engine.halves.set(half, used);
        self.staged_first |= at == 0;
        Ok(None)
    }

    /// The piece that is staged in step `at`, and the step in which it is read for the last time.
    #[inline]
    fn piece_to_stage(&self, at: u64) -> Option<(u64, u64)> {
        match (self.plan.shape, self.route) {
            (Shape::Inline | Shape::Alone, _) | (_, Route::Windows) => None,
            (Shape::Matrix, _) => Some((at, at)),
            // Data in a window waits for what the others say.
            (_, Route::Undecided) if self.own_places[0] != 0 && self.own_places[1] != 0 => None,
            (_, Route::StagedLate) if at == 0 || (at == 1 && self.staged_first) => None,
            (shape, route) => {
                let late = u64::from(route == Route::StagedLate);
                let at = at - late;
                match shape {
                    Shape::Slices if at & 1 == 1 => None,
                    Shape::Slices => Some((at / 2, at + late + 1)),
                    // Read where it stands.
                    _ if self.plan.places == 1 && self.own_places[0] != 0 => None,
                    _ => Some((at, at)),
                }
            }
        }
    }

    #[inline]
    fn try_read<'c>(
        &mut self,
        engine: &mut Engine<'c>,
        role: Role,
    ) -> Result<Option<Blocked<'c>>, CollError> {
        let at = self.read;
        let step = self.base + 1 + at;
        let from = match role {
            Role::Exchange => engine.progress.others(),
            Role::Source(_) => 0,
            Role::Sink(from) => from,
        };
        let mut missing = from & !self.seen;
        while missing != 0 {
            // The last rank first: where ranks come in order, one wait covers all.
            let rank = 63 - missing.leading_zeros() as usize;
            if let Some(blocked) = engine.observe(rank, step, self.number, self.chain)? {
                self.seen = from & !missing;
                return Ok(Some(blocked));
            }
            missing &= !(1 << rank);
        }
        self.seen = 0;
        fault_point!("coll.observed");
        if self.plan.block * self.request.dtype.size() >= engine.setting.table.notify_first as usize {
            engine.progress.notify();
        }
        self.take(engine, at, step, from)?;
        fault_point!("coll.read");
        engine.progress.finish(step);
        self.read += 1;
        Ok(None)
    }

    /// Takes what the others staged in step `at`.
    #[inline]
    fn take(&mut self, engine: &mut Engine<'_>, at: u64, step: u64, from: u64) -> Result<(), CollError> {
        match (self.plan.shape, self.route) {
            (Shape::Alone, _) => {}
            (Shape::Inline, _) => self.take_inline(engine, step),
            (Shape::Matrix, Route::Undecided) => {
                self.plan.block = engine.setting.matrix_block(&self.request);
                self.plan.pieces = self.take_counts(engine)?;
                self.route = Route::Staged;
            }
            (Shape::Matrix, _) => self.take_matrix(engine, at),
            (_, Route::Undecided) => {
                self.read_places(engine, step, from);
                let nranks = engine.nranks();
                match self.in_windows() {
                    0 => {
                        self.route = Route::Staged;
                        self.take_piece(engine, 0, from)?;
                    }
                    all if all == nranks => {
                        self.take_windows(engine)?;
                        self.route = Route::Windows;
                    }
                    _ => self.stage_late(engine),
                }
            }
            (_, Route::Windows) => {}
            (_, Route::StagedLate) => self.take_piece(engine, at - 1, from)?,
            (_, Route::Staged) => {
                if at == 0 && self.plan.places == 1 {
                    self.read_places(engine, step, from);
                }
                self.take_piece(engine, at, from)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn take_piece(&mut self, engine: &mut Engine<'_>, at: u64, from: u64) -> Result<(), CollError> {
        match (self.plan.shape, at & 1) {
            (Shape::Slices, 0) => self.reduce_slice(engine, at / 2),
            (Shape::Slices, _) => {
                self.collect_slices(engine, at / 2);
                Ok(())
            }
            _ => {
                self.take_whole(engine, at)?;
                self.take_over(engine, at, from);
                Ok(())
            }
        }
    }

    /// Remembers where the others' data lies.
    fn read_places(&mut self, engine: &Engine<'_>, step: u64, from: u64) {
        self.places = UpTo64::new();
        for rank in 0..engine.nranks() {
            let mut words = self.own_places;
            if from & 1 << rank != 0 {
                engine.progress.payload(rank, step, &mut words);
            }
            self.places.push(words);
        }
    }

    /// How many ranks have both input and output in a window.
    fn in_windows(&self) -> usize {
        self.places.get().iter().filter(|of| !of.contains(&0)).count()
    }

    /// The data goes through the staging area after all. What was staged already is read one step later than it was said to be.
    fn stage_late(&mut self, engine: &mut Engine<'_>) {
        self.route = Route::StagedLate;
        if self.staged_first {
            let half = mailbox_atomics::Halves::of(self.first_piece);
            let used = engine.halves.last_use(half);
            engine.halves.set(half, Use { step: used.step + 1, ..used });
        }
    }

    /// A rank whose input was read where it stands returns when all have read it.
    #[inline]
    fn drain<'c>(&mut self, engine: &mut Engine<'c>) -> Result<Option<Blocked<'c>>, CollError> {
        if self.plan.places != 1 || self.own_places[0] == 0 {
            return Ok(None);
        }
        // The second step of a slice goes to the root only, and does not read the input.
        let at = self.steps() - if self.plan.shape == Shape::Slices { 2 } else { 1 };
        let (readers, acknowledged) = match self.role(engine, at) {
            Role::Exchange => (engine.progress.others(), false),
            Role::Source(readers) => (readers, true),
            Role::Sink(_) => return Ok(None),
        };
        let used = Use { step: self.base + 1 + at, readers, acknowledged, hash: self.chain };
        let blocked = engine.free(used, self.number)?;
        if blocked.is_some() {
            engine.progress.notify();
        }
        Ok(blocked)
    }
}

/// How far a started call came.
pub(crate) enum Ahead<'c> {
    /// One step further.
    Wrote,
    /// Nothing is left of this part.
    Done,
    /// A step has to be read first.
    ReadFirst,
    /// A step has to be written first.
    WriteFirst,
    /// It waits for this.
    Blocked(Blocked<'c>),
}
