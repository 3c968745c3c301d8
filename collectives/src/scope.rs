//! Started calls: they go on while the caller does something else.

use crate::call::Call;
use crate::device::Origin;
use crate::element::{Element, Op};
use crate::error::CollError;
use crate::group::Collectives;
use crate::pairs::{Direction, Transfer};
use crate::request::Request;
use crate::requests::Requests;
use crate::started::Ticket;
use crate::tensor::{Buffer, Input};
use core::marker::PhantomData;
use std::fmt;

/// Where calls are started, made by [`Collectives::scope`]. All of them are over when the scope is.
pub struct Scope<'scope, 'env: 'scope> {
    group: &'scope dyn Starter,
    requests: Requests,
    /// Invariant, as the scopes of threads are.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A started call. It holds what it writes, and returns it when it is over.
///
/// Dropped before it is over, the call goes on all the same, and is waited for at the end of the scope.
#[must_use = "wait for it, or let the scope do that"]
pub struct Pending<'scope, B = ()> {
    group: &'scope dyn Starter,
    ticket: Ticket,
    output: B,
}

/// A group whose lifetime the scope need not name.
trait Starter: fmt::Debug {
    fn start(&self, request: Request) -> Result<Ticket, CollError>;
    fn start_message(&self, transfer: Transfer) -> Result<Ticket, CollError>;
    fn test(&self, ticket: Ticket) -> Result<bool, CollError>;
    fn wait(&self, ticket: Ticket) -> Result<(), CollError>;
}

impl Starter for Collectives<'_> {
    fn start(&self, request: Request) -> Result<Ticket, CollError> {
        if let Some(device) = self.device() {
            request.check(self.nranks())?;
            return device?.start(request, Origin::Host);
        }
        let mut engine = self.enter()?;
        engine.check()?;
        request.check(self.nranks())?;
        let call = Call::new(&engine, request);
        Ok(engine.start(call))
    }

    fn start_message(&self, transfer: Transfer) -> Result<Ticket, CollError> {
        if let Some(device) = self.device() {
            return device?.start_transfer(&transfer, Origin::Host);
        }
        let mut engine = self.enter()?;
        engine.check()?;
        Ok(engine.start_transfer(transfer))
    }

    fn test(&self, ticket: Ticket) -> Result<bool, CollError> {
        self.is_over(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), CollError> {
        self.finish(ticket)
    }
}

impl<'c> Collectives<'c> {
    /// Runs `body`, which may start calls, and then waits until all calls that were started are over.
    ///
    /// A started call makes progress in every call of this crate that this thread makes, on any group; with
    /// [`Options::progress_thread`](crate::Options::progress_thread) also while it makes none. Without the thread, what is not sent at
    /// once (one or two pieces of some 256 KiB are) waits for such a call.
    ///
    /// Buffers are borrowed until the end of the scope, or returned by [`Pending::wait`].
    /// ```
    /// # use collectives::{Collectives, Op, Options};
    /// # use comm_context::comm::{Membership, Timeout};
    /// # let path = std::env::temp_dir().join(format!("collectives-scope-{}", std::process::id()));
    /// # let comm = comm_sim::SimComm::rendezvous(&path, Membership::new(0, 1)?, Timeout::DEFAULT)?;
    /// let group = Collectives::new(&comm, Options::new())?;
    /// let mut gradients = vec![1.5_f32; 1000];
    /// let total = group.scope(|calls| {
    ///     let pending = calls.start_all_reduce(&mut gradients, Op::Sum)?;
    ///     // Something else.
    ///     let sums = pending.wait()?;
    ///     Ok::<f32, collectives::CollError>(sums.iter().sum())
    /// })??;
    /// assert_eq!(total, 1500.0);
    /// # group.close()?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// That of the wait at the end. What `body` returns is lost then.
    pub fn scope<'env, R>(
        &'env self,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> Result<R, CollError> {
        /// Waits also when `body` panics: its buffers are about to go.
        struct Finish<'g, 'c>(&'g Collectives<'c>);
        impl Drop for Finish<'_, '_> {
            fn drop(&mut self) {
                let _ = self.0.finish_all();
            }
        }
        let scope = Scope { group: self, requests: self.requests(), scope: PhantomData, env: PhantomData };
        let finish = Finish(self);
        let returned = body(&scope);
        let finished = self.finish_all();
        drop(finish);
        finished.map(|()| returned)
    }
}

impl<'scope> Scope<'scope, '_> {
    fn start<B>(&'scope self, request: Request, output: B) -> Result<Pending<'scope, B>, CollError> {
        let ticket = self.group.start(request)?;
        Ok(Pending { group: self.group, ticket, output })
    }

    /// Starts a [barrier](Collectives::barrier).
    pub fn start_barrier(&'scope self) -> Result<Pending<'scope>, CollError> {
        self.start(Request::BARRIER, ())
    }

    /// Starts an [all_reduce](Collectives::all_reduce).
    pub fn start_all_reduce<B: Buffer + ?Sized>(
        &'scope self,
        buffer: &'scope mut B,
        op: Op,
    ) -> Result<Pending<'scope, &'scope mut B>, CollError> {
        self.start(self.requests.all_reduce(buffer, op), buffer)
    }

    /// Starts an [all_reduce_into](Collectives::all_reduce_into).
    pub fn start_all_reduce_into<I, B>(
        &'scope self,
        input: &'scope I,
        output: &'scope mut B,
        op: Op,
    ) -> Result<Pending<'scope, &'scope mut B>, CollError>
    where
        I: Input + ?Sized,
        B: Buffer<Item = I::Item> + ?Sized,
    {
        self.start(self.requests.all_reduce_into(input, output, op)?, output)
    }

    /// Starts an [all_gather](Collectives::all_gather).
    pub fn start_all_gather<I: Input + ?Sized>(
        &'scope self,
        input: &'scope I,
        output: &'scope mut [I::Item],
    ) -> Result<Pending<'scope, &'scope mut [I::Item]>, CollError> {
        self.start(self.requests.all_gather(input, output)?, output)
    }

    /// Starts an [all_gather_v](Collectives::all_gather_v).
    pub fn start_all_gather_v<I: Input + ?Sized>(
        &'scope self,
        input: &'scope I,
        output: &'scope mut [I::Item],
        counts: &'scope [usize],
    ) -> Result<Pending<'scope, &'scope mut [I::Item]>, CollError> {
        self.start(self.requests.all_gather_v(input, output, counts)?, output)
    }

    /// Starts a [reduce_scatter](Collectives::reduce_scatter).
    pub fn start_reduce_scatter<I: Input + ?Sized>(
        &'scope self,
        input: &'scope I,
        output: &'scope mut [I::Item],
        op: Op,
    ) -> Result<Pending<'scope, &'scope mut [I::Item]>, CollError> {
        self.start(self.requests.reduce_scatter(input, output, op)?, output)
    }

    /// Starts a [reduce_scatter_v](Collectives::reduce_scatter_v).
    pub fn start_reduce_scatter_v<I: Input + ?Sized>(
        &'scope self,
        input: &'scope I,
        output: &'scope mut [I::Item],
        counts: &'scope [usize],
        op: Op,
    ) -> Result<Pending<'scope, &'scope mut [I::Item]>, CollError> {
        self.start(self.requests.reduce_scatter_v(input, output, counts, op)?, output)
    }

    /// Starts a [broadcast](Collectives::broadcast).
    pub fn start_broadcast<B: Buffer + ?Sized>(
        &'scope self,
        buffer: &'scope mut B,
        root: usize,
    ) -> Result<Pending<'scope, &'scope mut B>, CollError> {
        self.start(self.requests.broadcast(buffer, root), buffer)
    }

    /// Starts a [reduce](Collectives::reduce).
    pub fn start_reduce<I: Input + ?Sized>(
        &'scope self,
        input: &'scope I,
        mut output: Option<&'scope mut [I::Item]>,
        op: Op,
        root: usize,
    ) -> Result<Pending<'scope, Option<&'scope mut [I::Item]>>, CollError> {
        self.start(self.requests.reduce(input, output.as_deref_mut(), op, root)?, output)
    }

    /// Starts an [all_to_all](Collectives::all_to_all).
    pub fn start_all_to_all<I: Input + ?Sized>(
        &'scope self,
        input: &'scope I,
        output: &'scope mut [I::Item],
    ) -> Result<Pending<'scope, &'scope mut [I::Item]>, CollError> {
        self.start(self.requests.all_to_all(input, output)?, output)
    }

    /// Starts an [all_to_all_v](Collectives::all_to_all_v).
    pub fn start_all_to_all_v<T: Element>(
        &'scope self,
        input: &'scope [T],
        send: &'scope [usize],
        output: &'scope mut [T],
        receive: &'scope [usize],
    ) -> Result<Pending<'scope, &'scope mut [T]>, CollError> {
        self.start(self.requests.all_to_all_v(input, send, output, receive)?, output)
    }

    /// Starts a [gather](Collectives::gather).
    pub fn start_gather<I: Input + ?Sized>(
        &'scope self,
        input: &'scope I,
        mut output: Option<&'scope mut [I::Item]>,
        root: usize,
    ) -> Result<Pending<'scope, Option<&'scope mut [I::Item]>>, CollError> {
        self.start(self.requests.gather(input, output.as_deref_mut(), root)?, output)
    }

    /// Starts a [scatter](Collectives::scatter).
    pub fn start_scatter<I: Input + ?Sized>(
        &'scope self,
        input: Option<&'scope I>,
        output: &'scope mut [I::Item],
        root: usize,
    ) -> Result<Pending<'scope, &'scope mut [I::Item]>, CollError> {
        self.start(self.requests.scatter(input, output, root)?, output)
    }

    /// Starts a [send](Collectives::send).
    pub fn start_send<T: Element>(
        &'scope self,
        elements: &'scope [T],
        to: usize,
        tag: u32,
    ) -> Result<Pending<'scope>, CollError> {
        let direction = Direction::Send(elements.as_ptr().cast());
        let transfer = self.requests.transfer::<T>(direction, to, tag, elements.len())?;
        let ticket = self.group.start_message(transfer)?;
        Ok(Pending { group: self.group, ticket, output: () })
    }

    /// Starts a [recv](Collectives::recv).
    pub fn start_recv<T: Element>(
        &'scope self,
        elements: &'scope mut [T],
        from: usize,
        tag: u32,
    ) -> Result<Pending<'scope, &'scope mut [T]>, CollError> {
        let direction = Direction::Receive(elements.as_mut_ptr().cast());
        let transfer = self.requests.transfer::<T>(direction, from, tag, elements.len())?;
        let ticket = self.group.start_message(transfer)?;
        Ok(Pending { group: self.group, ticket, output: elements })
    }
}

impl<B> Pending<'_, B> {
    /// Whether the call is over. Works on all calls that were started.
    pub fn test(&mut self) -> Result<bool, CollError> {
        self.group.test(self.ticket)
    }

    /// Waits until the call is over, and returns what it wrote.
    pub fn wait(self) -> Result<B, CollError> {
        self.group.wait(self.ticket)?;
        Ok(self.output)
    }
}

impl<B> fmt::Debug for Pending<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({:?} of {:?})", self.ticket, self.group)
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({:?})", self.group)
    }
}
