//! A schedule that a user wrote: refused with a sentence, or proved, and then it has a plan that passes its own check.
#![no_main]

use ccl_schedule::Program;
use collectives::schedule::{Passing, Plan, PlanError, Sums};
use ipcq_sim::schedule_file;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

/// More would take longer than it finds.
const MOST_RANKS: u32 = 16;
const MOST_CHUNKS: u32 = 64;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, text)) = data.split_first() else { return };
    let program = match schedule_file::parse(&String::from_utf8_lossy(text), Path::new("fuzz.json")) {
        Ok(program) => program,
        Err(error) => return assert!(error.to_string().starts_with("fuzz.json: ")),
    };
    if program.ranks() > MOST_RANKS || program.chunks() > MOST_CHUNKS {
        return;
    }
    let passing =
        if kind % 4 == 0 { Passing::Reference } else { Passing::Value { slots: u32::from(kind % 4) } };
    match Plan::new(&program, passing, Sums::RoundedOnce) {
        Ok(plan) => assert_eq!(plan.ranks(), program.ranks() as usize),
        Err(error @ (PlanError::Untranslatable { .. } | PlanError::Mistranslated(_))) => panic!("{error}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
