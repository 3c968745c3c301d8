//! A thread that reports deaths at once.

use crate::process_watch::ProcessWatch;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

/// Little is called on it.
const STACK: usize = 256 << 10;
/// Until a report is made again.
const AGAIN_AFTER_MS: u16 = 1;

/// What [`DeathThread`]'s report returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// Those who wait have noticed, or will in any case.
    Yes,
    /// Report the same death again in a millisecond: a wake-up may have come too early.
    NotYet,
}

/// A thread that sleeps until one of some processes dies, and reports that. It costs nothing meanwhile.
///
/// It takes no lock and blocks all signals, so that it disturbs neither a fork nor the program's own
/// handlers. Dropping it ends it.
#[derive(Debug)]
pub struct DeathThread {
    /// Closing it ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl DeathThread {
    /// Calls `report` on the thread with the number, in the order of `watches`, of each process that dies.
    pub fn start<'a>(
        watches: impl IntoIterator<Item = &'a ProcessWatch>,
        report: impl FnMut(usize) -> Noticed + Send + 'static,
    ) -> std::io::Result<Self> {
        let watched = |watch: &ProcessWatch| Ok((watch.as_fd().try_clone_to_owned()?, watch.death_event()));
        let watched = watches.into_iter().map(watched).collect::<std::io::Result<Vec<_>>>()?;
        let (stopped, stop) = std::io::pipe()?;
        // The thread starts with the mask of the one that makes it.
        let mask = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK);
        // With a size, or the standard library would take the lock of the environment to find one.
        let builder = std::thread::Builder::new().name("deaths".to_owned()).stack_size(STACK);
        let thread = builder.spawn(move || watch(&stopped, &watched, report));
        if let Ok(mask) = mask {
            let _ = mask.thread_set_mask();
        }
        Ok(Self { stop: Some(stop), thread: Some(thread?) })
    }
}

impl Drop for DeathThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Bounded: it sleeps on the pipe that was just closed.
            let _ = thread.join();
        }
    }
}

fn watch(stopped: &PipeReader, watched: &[(OwnedFd, PollFlags)], mut report: impl FnMut(usize) -> Noticed) {
    let mut alive: Vec<usize> = (0..watched.len()).collect();
    let mut unnoticed: Vec<usize> = Vec::new();
    loop {
        let mut fds = vec![PollFd::new(stopped.as_fd(), PollFlags::empty())];
        fds.extend(alive.iter().map(|number| {
            let (fd, event) = &watched[*number];
            PollFd::new(fd.as_fd(), *event & PollFlags::POLLIN)
        }));
        let within = if unnoticed.is_empty() { PollTimeout::NONE } else { PollTimeout::from(AGAIN_AFTER_MS) };
        if poll(&mut fds, within).is_err() {
            continue;
        }
        let happened = |fd: &PollFd<'_>| fd.revents().unwrap_or(PollFlags::empty());
        if !happened(&fds[0]).is_empty() {
            return;
        }
        let dead = alive.iter().zip(&fds[1..]);
        let dead = dead.filter(|(number, fd)| happened(fd).intersects(watched[**number].1));
        unnoticed.extend(dead.map(|(number, _)| *number));
        drop(fds);
        alive.retain(|number| !unnoticed.contains(number));
        unnoticed.retain(|number| report(*number) == Noticed::NotYet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serial_test::serial;
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// CP-9
    #[test]
    #[serial]
    fn f02_a_death_is_reported_by_its_number_until_it_is_noticed() {
        let mut children = [(); 2].map(|()| Command::new("sleep").arg("60").spawn().unwrap());
        let watches = children.each_ref().map(|child| ProcessWatch::of_process(child.id() as i32).unwrap());
        let (sender, reported) = channel();
        let mut times = 0;
        let thread = DeathThread::start(&watches, move |number| {
            times += 1;
            sender.send(number).unwrap();
            if times < 3 { Noticed::NotYet } else { Noticed::Yes }
        })
        .unwrap();
        assert!(reported.try_recv().is_err());
        children[1].kill().unwrap();
        let within = Duration::from_secs(20);
        assert_eq!([(); 3].map(|()| reported.recv_timeout(within)), [Ok(1); 3]);
        drop(thread);
        assert!(reported.recv().is_err(), "nothing more, and the thread is gone");
        for child in &mut children {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}
