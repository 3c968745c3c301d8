use super::*;
use worker_errors::Failure;

fn one_of_each() -> Vec<CommError> {
    let id = AllocationId(0xab);
    let died = CommError::PeerDied {
        rank: 1,
        pid: Some(4321),
        how: Death::Signalled { signal: 11 },
        phase: Phase::AllocWindows,
    };
    vec![
        ArgumentError::NoRanks.into(),
        CommError::NoWindow,
        CommError::WindowsExist,
        CommError::UnknownDomain { id },
        CommError::DomainExists { id },
        CommError::Closed,
        CommError::TimedOut {
            phase: Phase::Barrier,
            waited: Duration::from_millis(2004),
            limit: Duration::from_secs(2),
            missing: vec![1, 3],
            table: "rank 1: idle for 2.1 s\nrank 3: init for 2.0 s\n".into(),
        },
        died.clone(),
        CommError::PeerLeft { rank: 2, reason: DESTROYED.into(), phase: Phase::Barrier },
        CommError::PeerFailed { rank: 3, phase: Phase::AllocDomain, message: "no memory".into() },
        CommError::Aborted { phase: Phase::Barrier, reason: "a task failed; see its error".into() },
        CommError::OutOfMemory { what: "the base window".into(), need: 8192, have: Some(4096) },
        CommError::Mismatch { what: "window size", rank: 1, mine: "64".into(), theirs: "128".into() },
        CommError::system("memfd_create", "the base window", &std::io::Error::from_raw_os_error(24)),
        CommError::Vendor {
            function: "aclrtMapMem",
            code: 507899,
            name: "ACL_ERROR_RT_DRV_INTERNAL_ERROR",
            advice: "pass the driver-visible device id",
            detail: String::new(),
            phase: Phase::AllocWindows,
        },
        CommError::Stuck {
            function: "HcclBarrier",
            rank: 3,
            phase: Phase::Barrier,
            waited: Duration::from_millis(2004),
            limit: Duration::from_secs(2),
        },
        CommError::broken(&Arc::new(died)),
        CommError::Backend { what: "joining the group; try again".into(), source: Arc::new(std::fmt::Error) },
    ]
}

#[test]
fn the_texts_name_what_where_and_the_next_step() {
    let texts: Vec<String> = one_of_each().iter().map(ToString::to_string).collect();
    let has = |text: &str| assert!(texts.iter().any(|t| t.contains(text)), "{text:?} in none of {texts:#?}");
    has("timed out in barrier after 2.0s of 2s; ranks [1, 3] had not arrived");
    has("\nrank 1: idle for 2.1 s\nrank 3: init for 2.0 s");
    has("rank 1 (pid 4321) died (SIGSEGV) in alloc_windows; ");
    has("HcclBarrier has not come back in barrier on rank 3 after 2.0s of 2s; end this process");
    has("need 8192 bytes, have 4096");
    has("this one has 64, rank 1 has 128");
    has("raise the limit of open files");
    has("aclrtMapMem returned 507899 (ACL_ERROR_RT_DRV_INTERNAL_ERROR) in alloc_windows; pass");
    for text in texts.iter().filter(|t| !t.starts_with("this communicator")) {
        assert!(text.contains(';') || text.contains("call "), "no next step in {text:?}");
    }
}

// CC-8
#[test]
fn broken_repeats_the_first_cause_however_often_it_is_wrapped() {
    let first =
        Arc::new(CommError::PeerDied { rank: 1, pid: None, how: Death::Vanished, phase: Phase::Barrier });
    let again = CommError::broken(&Arc::new(CommError::broken(&Arc::new(CommError::broken(&first)))));
    let CommError::Broken { cause } = &again else { panic!("{again:?}") };
    assert!(Arc::ptr_eq(cause, &first));
    assert!(matches!(again.root_cause(), CommError::PeerDied { rank: 1, .. }));
    assert_eq!(again.code(), ErrorCode::PeerDied);
    assert_eq!(again.to_string().matches("first cause").count(), 1);
}

#[test]
fn a_failure_has_the_code_phase_and_rank_of_the_first_cause() {
    for error in one_of_each() {
        let failure = Failure::from(&error);
        assert_eq!(failure.message, error.to_string());
        assert_eq!(failure.chain().count(), 1, "a text is repeated: {failure}");
        match error.root_cause() {
            CommError::PeerDied { .. } => {
                let place = (failure.code, failure.rank, &*failure.phase);
                assert_eq!(place, (ErrorCode::Killed, Some(1), "alloc_windows"));
            }
            root => assert_eq!(failure.code, root.code()),
        }
    }
}

#[test]
fn every_death_reads_as_a_sentence() {
    assert_eq!(Death::Exited { status: 3 }.to_string(), "exited with status 3");
    assert_eq!(Death::Signalled { signal: 9 }.to_string(), "died (SIGKILL)");
    assert_eq!(Death::Signalled { signal: 60 }.to_string(), "died (signal 60)");
}
