//! Waits for a chip in another process.
//!
//! # Safety
//! Forks; the children use a communicator and a runtime of their own, and no lock of the test harness.
#![allow(unsafe_code)]

mod common;

use child_process::Child;
use chip_runtime::signals::{Domain, SignalError, Signaller, Signals, Wait};
use chip_runtime::{ErrorKind, FrontEnd, Kernels, Limits, Runtime, RuntimeError, TaskArgs};
use comm_context::comm::{Communicator, Timeout};
use comm_sim::{Prepared, SimComm};
use common::soon;
use deadline::HowDied;
use shared_memory::Region;
use std::sync::Arc;
use std::time::Duration;
use worker_errors::clip;

/// Bytes of what a process says, the first of which is 1 when it has said all.
const TEXT: usize = 4096;
const SIGKILL: i32 = 9;

/// Where rank 0 says how its run ended, and each rank that it has its window.
const ENDED: usize = 0;
const READY: [usize; 2] = [1, 2];

/// Memory that all processes have: the words of the signals, then texts.
struct Shared {
    prepared: Prepared,
    region: Arc<Region>,
}

impl Shared {
    fn new() -> Self {
        let len = texts_at() + 3 * TEXT;
        Self {
            prepared: SimComm::prepare_group(2).unwrap(),
            region: Arc::new(Region::create("test", len).unwrap()),
        }
    }

    /// A rank in a process of its own, which says what `body` returns.
    fn fork(&self, rank: u32, body: impl Fn(Runtime) -> String) -> Child {
        let keep: Vec<_> = self.prepared.fds().chain(self.region.fds()).collect();
        let live = || {
            let runtime = self.runtime(rank);
            let ready = runtime.as_ref().err().map_or_else(|| "ready".to_owned(), RuntimeError::to_string);
            self.say(READY[rank as usize], &ready);
            self.say(ENDED, &runtime.map_or_else(|error| error.to_string(), body));
            0
        };
        // SAFETY: see the top of the file.
        unsafe { Child::fork(&keep, live) }.unwrap()
    }

    fn runtime(&self, rank: u32) -> Result<Runtime, RuntimeError> {
        let within = Timeout::new(Duration::from_secs(60)).unwrap();
        let comm = SimComm::join(&self.prepared, rank, within).map_err(SignalError::from)?;
        comm.alloc_windows(4096, within).map_err(SignalError::from)?;
        let comm: Arc<Box<dyn Communicator>> = Arc::new(Box::new(comm));
        let mut runtime = Runtime::new(Limits { clusters: 1, ..Limits::default() })?;
        runtime.connect(Signals::over(self.region.clone(), 0, comm)?);
        runtime.session(1, &[0, 1]);
        Ok(runtime)
    }

    fn say(&self, place: usize, text: &str) {
        let at = texts_at() + place * TEXT;
        self.region.write(at + 1, clip(text, TEXT - 1).as_bytes()).unwrap();
        self.region.write(at, &[1]).unwrap();
    }

    /// What was said there, if it was.
    fn said(&self, place: usize) -> Option<String> {
        let mut text = vec![0; TEXT];
        self.region.read(texts_at() + place * TEXT, &mut text).unwrap();
        (text[0] == 1).then(|| String::from_utf8_lossy(&text[1..]).trim_end_matches('\0').to_owned())
    }
}

fn texts_at() -> usize {
    Signals::words_bytes(2).next_multiple_of(TEXT)
}

/// CR-4: the error of a wait is its own: the task that waits for the chip that ended, its kernel and the place of its submit, the
/// word, and how that chip ended.
#[test]
fn a_wait_for_a_chip_that_is_killed_says_so() {
    let shared = Shared::new();
    let waits = shared.fork(0, |mut runtime| {
        let other = runtime.kernel("other", |_| Ok(()));
        let nothing = runtime.kernel("nothing", |_| Ok(()));
        let wait = |from| TaskArgs::new().wait(Wait { domain: Domain::BASE, offset: 64, at_least: 3, from });
        let run = runtime.run(FrontEnd::Inferred, soon(), |graph| {
            graph.submit(Kernels::aiv(other), &wait(Signaller::Unknown))?;
            graph.submit(Kernels::aiv(nothing), &wait(Signaller::Rank(1))).map(drop)
        });
        let text = |error: RuntimeError| {
            let ErrorKind::Signal { code, cause, .. } = &error.kind else { return error.to_string() };
            format!("{code} {cause:?} {error}")
        };
        run.map_or_else(text, |()| "met".into())
    });
    let dies = shared.fork(1, |mut runtime| {
        let stays = runtime.kernel("stays", |_| {
            loop {
                std::thread::park();
            }
        });
        let args = TaskArgs::new();
        let run = runtime
            .run(FrontEnd::Inferred, soon(), |graph| graph.submit(Kernels::aiv(stays), &args).map(drop));
        format!("{run:?}")
    });
    // Before that they wait for each other in calls of the communicator.
    for place in READY {
        while shared.said(place).is_none() && dies.try_reap().is_none() && waits.try_reap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(shared.said(place).as_deref(), Some("ready"));
    }
    dies.signal(SIGKILL);
    assert_eq!(dies.reap(soon()), Some(HowDied::Signalled(SIGKILL)));
    assert_eq!(waits.reap(soon()), Some(HowDied::Exited(0)));
    let said = shared.said(ENDED).unwrap();
    let died = format!(": rank 1 (pid {}) died", dies.pid());
    let awaited = "task 0.1 waits for rank 1 (word 0x40 of window `base` is 0, not 3)";
    // Who has not started it does not always learn how it died.
    let begins =
        ["PeerDied", "Killed"].map(|cause| format!("102 {cause} task 0.1, kernel 1 `nothing`: while "));
    assert!(begins.iter().any(|begin| said.starts_with(begin)), "{said}");
    assert!(said.contains(awaited) && said.contains(&died), "{said}");
    assert!(said.contains(&format!(" (submitted at {}:", file!())), "{said}");
}
