//! The table that a group chooses its algorithms by: one for all ranks, from a file or a call.
//!
//! # Safety
//! Sets a variable of the environment, in ranks that are processes with one thread.
#![allow(missing_docs, unsafe_code)]

mod support;

use collectives::{CollError, Collectives, Op, Options, Table};
use comm_context::comm::Communicator;
use support::{Random, elements, in_comms, in_groups, options, reduced, same_bits};

// CO-8
#[test]
fn different_tables_are_an_error_that_names_both_ranks_and_values() {
    in_comms(3, |comm| {
        let table = Table::default().with("one_shot_reads", 12 << 10 << comm.rank().min(1));
        let table = table.map_err(|error| error.to_string())?;
        match Collectives::new(comm, options().table(table)) {
            Err(error @ CollError::Table { .. }) => {
                let said = error.to_string();
                let other = if comm.rank() == 0 { 1 } else { 0 };
                let values = [
                    "ranks choose by different tables: ".to_owned(),
                    format!("one_shot_reads is {} KiB on rank {}", 12 << comm.rank().min(1), comm.rank()),
                    format!("and {} KiB on rank {other}", 12 << other),
                    "; give every rank the same one (CHIPCOMM_COLL_TABLE, Options::table)".to_owned(),
                ];
                if values.iter().all(|value| said.contains(value)) { Ok(()) } else { Err(said) }
            }
            Err(error) => Err(format!("another error: {error}")),
            Ok(_) => Err("it was not refused".to_owned()),
        }
    });
}

// CO-2: every table gives the same bits, as far from the default as entries can be.
#[test]
fn results_do_not_depend_on_the_table() {
    let tables = [
        "pair_one_shot: 0\none_shot_reads: 0\nreduce_reads: 0\nwindow_min: 64\nby_reference_min: 64\n\
         pieces_from: 4 KiB\npiece: 4 KiB\nrooted_piece: 4 KiB\npolls: 1\nyields: 0\nprefetch: 0\nnotify_first: 0\ntake_over: 0\nask_from: 64\nask_ahead: 64\nask_polling: 0\nstrings_from: 1",
        "pair_one_shot: any\none_shot_reads: any\nreduce_reads: any\nwindow_min: 256 KiB\nby_reference_min: any\n\
         pieces_from: any\npiece: any\nrooted_piece: 256 KiB\nspins: 0\nprefetch: 256 KiB\nnotify_first: any\ntake_over: any\nask_from: any\nask_ahead: 64 KiB\nask_polling: 64 KiB\nstrings_from: any",
    ];
    for table in tables.map(|text| text.parse::<Table>().unwrap()) {
        for nranks in [2, 3] {
            in_groups(nranks, options().table(table), |group| {
                let mut random = Random::new(nranks as u64);
                for seed in 0..25 {
                    let most = [20, 3000, 30_000, 500_000][random.below(4)];
                    let count = random.below(most);
                    let all: Vec<Vec<f32>> = (0..nranks).map(|rank| elements(seed, rank, count)).collect();
                    let expected = reduced(Op::Sum, &all);
                    let mut values = all[group.rank()].clone();
                    group.all_reduce(&mut values, Op::Sum).map_err(|error| error.to_string())?;
                    same_bits(&format!("{count} values, {table:?}"), &values, &expected)?;
                    let mut root = vec![0.0; count];
                    let output = (group.rank() == 1).then_some(&mut root[..]);
                    group
                        .reduce(&all[group.rank()], output, Op::Sum, 1)
                        .map_err(|error| error.to_string())?;
                    if group.rank() == 1 {
                        same_bits(&format!("reduce, {count} values, {table:?}"), &root, &expected)?;
                    }
                }
                Ok(())
            });
        }
    }
}

#[test]
fn the_environment_names_a_file_for_groups_that_are_given_no_table() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "piece: 8 KiB\n").unwrap();
    let set = |path: &std::path::Path| {
        // SAFETY: a rank of these tests is a process with one thread.
        unsafe {
            std::env::set_var(Table::VARIABLE, path);
        }
    };
    in_comms(2, |comm| {
        // One rank by the file, the other by the call: they agree.
        let table = Table::default().with("piece", 8 << 10).map_err(|error| error.to_string())?;
        let options = if comm.rank() == 0 { options() } else { options().table(table) };
        set(file.path());
        let group = Collectives::new(comm, options).map_err(|error| error.to_string())?;
        let smaller = group.split(Some(0), 0).map_err(|error| error.to_string())?;
        drop(smaller);
        group.close().map_err(|error| error.to_string())?;
        set("/there/is/none".as_ref());
        match Collectives::new(comm, Options::new()) {
            Err(CollError::Argument(error)) if error.to_string().contains("/there/is/none") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}
