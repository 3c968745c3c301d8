//! The calls: every one returns when this rank has what it asked for.

use crate::call::Call;
use crate::device::Origin;
use crate::element::{Element, Op};
use crate::engine::Engine;
use crate::error::CollError;
use crate::group::Collectives;
use crate::pairs::{Direction, Transfer};
use crate::request::Request;
use crate::requests::Requests;
use crate::tensor::{Buffer, Input};

impl Collectives<'_> {
    #[inline]
    pub(crate) fn requests(&self) -> Requests {
        Requests { rank: self.rank(), nranks: self.nranks() }
    }

    /// Runs a request whose buffers are as long as it says.
    #[inline]
    pub(crate) fn run(&self, request: Request) -> Result<(), CollError> {
        request.check(self.nranks())?;
        self.run_from(&request, Origin::Host)
    }

    /// The same with a request that was checked, and buffers that may be on a device.
    #[inline]
    pub(crate) fn run_from(&self, request: &Request, origin: Origin) -> Result<(), CollError> {
        if let Some(device) = self.device() {
            return device?.run(*request, origin);
        }
        let mut engine = self.enter()?;
        engine.check()?;
        if engine.queue.is_empty() && engine.takes_one_step(request) {
            return engine.run_at_once(request);
        }
        run_in_steps(&mut engine, request)
    }

    fn run_transfer(&self, transfer: Transfer) -> Result<(), CollError> {
        if let Some(device) = self.device() {
            let device = device?;
            let ticket = device.start_transfer(&transfer, Origin::Host)?;
            return device.wait(ticket);
        }
        let mut engine = self.enter()?;
        engine.check()?;
        let ticket = engine.start_transfer(transfer);
        engine.wait_for(ticket)
    }
}

/// Runs a call of any kind and size.
#[inline(never)]
fn run_in_steps(engine: &mut Engine<'_>, request: &Request) -> Result<(), CollError> {
    let mut call = Call::new(engine, *request);
    if !engine.queue.is_empty() {
        return engine.run_queued(call);
    }
    call.place(engine);
    engine.run(&mut call)
}

impl Collectives<'_> {
    /// Returns when every rank has come here.
    pub fn barrier(&self) -> Result<(), CollError> {
        self.run(Request::BARRIER)
    }

    /// Combines `buffer` of all ranks, and leaves the result in it on every rank.
    ///
    /// From window to window when every rank passes a [tensor](crate::WindowTensor) of at least `window_min` of the
    /// [`Table`](crate::Table): 16 KiB, or 32 KiB on AMD.
    #[inline]
    pub fn all_reduce<B: Buffer + ?Sized>(&self, buffer: &mut B, op: Op) -> Result<(), CollError> {
        let request = self.requests().all_reduce(buffer, op);
        self.run(request)
    }

    /// Combines `input` of all ranks into `output` of every rank.
    pub fn all_reduce_into<I, B>(&self, input: &I, output: &mut B, op: Op) -> Result<(), CollError>
    where
        I: Input + ?Sized,
        B: Buffer<Item = I::Item> + ?Sized,
    {
        self.run(self.requests().all_reduce_into(input, output, op)?)
    }

    /// Collects `input` of all ranks, in their order, in `output` of every rank.
    ///
    /// ```
    /// # use collectives::{Collectives, Options};
    /// # use comm_context::comm::{Membership, Timeout};
    /// # use comm_sim::SimComm;
    /// # type Error = Box<dyn std::error::Error + Send + Sync>;
    /// # let path = std::env::temp_dir().join(format!("all-gather-{}", std::process::id()));
    /// // What each of two ranks does.
    /// let rank = |group: &Collectives<'_>| -> Result<(), Error> {
    ///     let mine = [group.rank() as f32; 2];
    ///     let mut all = [0.0; 4];
    ///     group.all_gather(&mine, &mut all)?;
    ///     assert_eq!(all, [0.0, 0.0, 1.0, 1.0]);
    ///     Ok(())
    /// };
    /// # let join = |number: u32| -> Result<(), Error> {
    /// #     let comm = SimComm::rendezvous(&path, Membership::new(number, 2)?, Timeout::DEFAULT)?;
    /// #     let group = Collectives::new(&comm, Options::new())?;
    /// #     rank(&group)?;
    /// #     Ok(group.close()?)
    /// # };
    /// # std::thread::scope(|scope| {
    /// #     let ranks: Vec<_> = (0..2).map(|number| scope.spawn({ let join = &join; move || join(number) })).collect();
    /// #     ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    /// # })?;
    /// # Ok::<_, Error>(())
    /// ```
    pub fn all_gather<I: Input + ?Sized>(&self, input: &I, output: &mut [I::Item]) -> Result<(), CollError> {
        self.run(self.requests().all_gather(input, output)?)
    }

    /// Collects `input` of all ranks, of which rank `r` gives `counts[r]` elements.
    ///
    /// ```
    /// # use collectives::{Collectives, Options};
    /// # use comm_context::comm::{Membership, Timeout};
    /// # use comm_sim::SimComm;
    /// # type Error = Box<dyn std::error::Error + Send + Sync>;
    /// # let path = std::env::temp_dir().join(format!("all-gather-v-{}", std::process::id()));
    /// // What each of two ranks does.
    /// let rank = |group: &Collectives<'_>| -> Result<(), Error> {
    ///     let mine = vec![group.rank() as i32; group.rank() + 1]; // [0] and [1, 1]
    ///     let mut all = [-1; 3];
    ///     group.all_gather_v(&mine, &mut all, &[1, 2])?;
    ///     assert_eq!(all, [0, 1, 1]);
    ///     Ok(())
    /// };
    /// # let join = |number: u32| -> Result<(), Error> {
    /// #     let comm = SimComm::rendezvous(&path, Membership::new(number, 2)?, Timeout::DEFAULT)?;
    /// #     let group = Collectives::new(&comm, Options::new())?;
    /// #     rank(&group)?;
    /// #     Ok(group.close()?)
    /// # };
    /// # std::thread::scope(|scope| {
    /// #     let ranks: Vec<_> = (0..2).map(|number| scope.spawn({ let join = &join; move || join(number) })).collect();
    /// #     ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    /// # })?;
    /// # Ok::<_, Error>(())
    /// ```
    pub fn all_gather_v<I: Input + ?Sized>(
        &self,
        input: &I,
        output: &mut [I::Item],
        counts: &[usize],
    ) -> Result<(), CollError> {
        self.run(self.requests().all_gather_v(input, output, counts)?)
    }

    /// Combines `input` of all ranks, and leaves block `r` of the result in `output` of rank `r`.
    ///
    /// ```
    /// # use collectives::{Collectives, Op, Options};
    /// # use comm_context::comm::{Membership, Timeout};
    /// # use comm_sim::SimComm;
    /// # type Error = Box<dyn std::error::Error + Send + Sync>;
    /// # let path = std::env::temp_dir().join(format!("reduce-scatter-{}", std::process::id()));
    /// // What each of two ranks does.
    /// let rank = |group: &Collectives<'_>| -> Result<(), Error> {
    ///     let gradients = [1.0_f32, 2.0, 3.0, 4.0];
    ///     let mut mine = [0.0; 2]; // half of the sum
    ///     group.reduce_scatter(&gradients, &mut mine, Op::Sum)?;
    ///     assert_eq!(mine, if group.rank() == 0 { [2.0, 4.0] } else { [6.0, 8.0] });
    ///     Ok(())
    /// };
    /// # let join = |number: u32| -> Result<(), Error> {
    /// #     let comm = SimComm::rendezvous(&path, Membership::new(number, 2)?, Timeout::DEFAULT)?;
    /// #     let group = Collectives::new(&comm, Options::new())?;
    /// #     rank(&group)?;
    /// #     Ok(group.close()?)
    /// # };
    /// # std::thread::scope(|scope| {
    /// #     let ranks: Vec<_> = (0..2).map(|number| scope.spawn({ let join = &join; move || join(number) })).collect();
    /// #     ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    /// # })?;
    /// # Ok::<_, Error>(())
    /// ```
    pub fn reduce_scatter<I: Input + ?Sized>(
        &self,
        input: &I,
        output: &mut [I::Item],
        op: Op,
    ) -> Result<(), CollError> {
        self.run(self.requests().reduce_scatter(input, output, op)?)
    }

    /// The same with blocks of `counts[r]` elements.
    pub fn reduce_scatter_v<I: Input + ?Sized>(
        &self,
        input: &I,
        output: &mut [I::Item],
        counts: &[usize],
        op: Op,
    ) -> Result<(), CollError> {
        self.run(self.requests().reduce_scatter_v(input, output, counts, op)?)
    }

    /// Copies `buffer` of rank `root` to that of every rank. The root may return before the others have it.
    pub fn broadcast<B: Buffer + ?Sized>(&self, buffer: &mut B, root: usize) -> Result<(), CollError> {
        self.run(self.requests().broadcast(buffer, root))
    }

    /// Combines `input` of all ranks into `output` of rank `root`, which alone passes one. The others may return before the root.
    pub fn reduce<I: Input + ?Sized>(
        &self,
        input: &I,
        output: Option<&mut [I::Item]>,
        op: Op,
        root: usize,
    ) -> Result<(), CollError> {
        self.run(self.requests().reduce(input, output, op, root)?)
    }

    /// Sends block `r` of `input` to rank `r`, and collects what all send here, in their order, in `output`.
    ///
    /// ```
    /// # use collectives::{Collectives, Options};
    /// # use comm_context::comm::{Membership, Timeout};
    /// # use comm_sim::SimComm;
    /// # type Error = Box<dyn std::error::Error + Send + Sync>;
    /// # let path = std::env::temp_dir().join(format!("all-to-all-{}", std::process::id()));
    /// // What each of two ranks does.
    /// let rank = |group: &Collectives<'_>| -> Result<(), Error> {
    ///     let me = group.rank() as i32;
    ///     let to_each = [10 * me, 10 * me + 1]; // for rank 0, for rank 1
    ///     let mut from_each = [0; 2];
    ///     group.all_to_all(&to_each, &mut from_each)?;
    ///     assert_eq!(from_each, [me, 10 + me]);
    ///     Ok(())
    /// };
    /// # let join = |number: u32| -> Result<(), Error> {
    /// #     let comm = SimComm::rendezvous(&path, Membership::new(number, 2)?, Timeout::DEFAULT)?;
    /// #     let group = Collectives::new(&comm, Options::new())?;
    /// #     rank(&group)?;
    /// #     Ok(group.close()?)
    /// # };
    /// # std::thread::scope(|scope| {
    /// #     let ranks: Vec<_> = (0..2).map(|number| scope.spawn({ let join = &join; move || join(number) })).collect();
    /// #     ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    /// # })?;
    /// # Ok::<_, Error>(())
    /// ```
    pub fn all_to_all<I: Input + ?Sized>(&self, input: &I, output: &mut [I::Item]) -> Result<(), CollError> {
        self.run(self.requests().all_to_all(input, output)?)
    }

    /// The same with `send[r]` elements to rank `r` and `receive[r]` elements from it. What one rank sends another, that one must
    /// expect.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send: &[usize],
        output: &mut [T],
        receive: &[usize],
    ) -> Result<(), CollError> {
        self.run(self.requests().all_to_all_v(input, send, output, receive)?)
    }

    /// Collects `input` of all ranks, in their order, in `output` of rank `root`, which alone passes one.
    ///
    /// ```
    /// # use collectives::{Collectives, Options};
    /// # use comm_context::comm::{Membership, Timeout};
    /// # use comm_sim::SimComm;
    /// # type Error = Box<dyn std::error::Error + Send + Sync>;
    /// # let path = std::env::temp_dir().join(format!("gather-{}", std::process::id()));
    /// // What each of two ranks does.
    /// let rank = |group: &Collectives<'_>| -> Result<(), Error> {
    ///     let mine = [group.rank() as i32; 2];
    ///     let mut all = [0; 4];
    ///     let output = (group.rank() == 0).then_some(&mut all[..]); // the root alone has one
    ///     group.gather(&mine, output, 0)?;
    ///     assert_eq!(all, if group.rank() == 0 { [0, 0, 1, 1] } else { [0; 4] });
    ///     Ok(())
    /// };
    /// # let join = |number: u32| -> Result<(), Error> {
    /// #     let comm = SimComm::rendezvous(&path, Membership::new(number, 2)?, Timeout::DEFAULT)?;
    /// #     let group = Collectives::new(&comm, Options::new())?;
    /// #     rank(&group)?;
    /// #     Ok(group.close()?)
    /// # };
    /// # std::thread::scope(|scope| {
    /// #     let ranks: Vec<_> = (0..2).map(|number| scope.spawn({ let join = &join; move || join(number) })).collect();
    /// #     ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    /// # })?;
    /// # Ok::<_, Error>(())
    /// ```
    pub fn gather<I: Input + ?Sized>(
        &self,
        input: &I,
        output: Option<&mut [I::Item]>,
        root: usize,
    ) -> Result<(), CollError> {
        self.run(self.requests().gather(input, output, root)?)
    }

    /// Sends block `r` of `input` of rank `root`, which alone passes one, to `output` of rank `r`.
    pub fn scatter<I: Input + ?Sized>(
        &self,
        input: Option<&I>,
        output: &mut [I::Item],
        root: usize,
    ) -> Result<(), CollError> {
        self.run(self.requests().scatter(input, output, root)?)
    }

    /// Sends elements to another rank of the group. Returns when they may be overwritten, which may be before they are received: some
    /// fit between the two.
    ///
    /// ```
    /// # use collectives::{Collectives, Options};
    /// # use comm_context::comm::{Membership, Timeout};
    /// # use comm_sim::SimComm;
    /// # type Error = Box<dyn std::error::Error + Send + Sync>;
    /// # let path = std::env::temp_dir().join(format!("send-{}", std::process::id()));
    /// // What each of two ranks does.
    /// let rank = |group: &Collectives<'_>| -> Result<(), Error> {
    ///     let mut ball = [0_u8; 4];
    ///     if group.rank() == 0 {
    ///         group.send(b"ping", 1, 7)?;
    ///         group.recv(&mut ball, 1, 7)?;
    ///     } else {
    ///         group.recv(&mut ball, 0, 7)?;
    ///         group.send(&ball, 0, 7)?;
    ///     }
    ///     assert_eq!(&ball, b"ping");
    ///     Ok(())
    /// };
    /// # let join = |number: u32| -> Result<(), Error> {
    /// #     let comm = SimComm::rendezvous(&path, Membership::new(number, 2)?, Timeout::DEFAULT)?;
    /// #     let group = Collectives::new(&comm, Options::new())?;
    /// #     rank(&group)?;
    /// #     Ok(group.close()?)
    /// # };
    /// # std::thread::scope(|scope| {
    /// #     let ranks: Vec<_> = (0..2).map(|number| scope.spawn({ let join = &join; move || join(number) })).collect();
    /// #     ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    /// # })?;
    /// # Ok::<_, Error>(())
    /// ```
    pub fn send<T: Element>(&self, elements: &[T], to: usize, tag: u32) -> Result<(), CollError> {
        let direction = Direction::Send(elements.as_ptr().cast());
        self.run_transfer(self.requests().transfer::<T>(direction, to, tag, elements.len())?)
    }

    /// Receives elements that rank `from` sends with `tag`. Messages with other tags that come first are kept for later. A message of
    /// another type or length breaks the group.
    pub fn recv<T: Element>(&self, elements: &mut [T], from: usize, tag: u32) -> Result<(), CollError> {
        let direction = Direction::Receive(elements.as_mut_ptr().cast());
        self.run_transfer(self.requests().transfer::<T>(direction, from, tag, elements.len())?)
    }
}
