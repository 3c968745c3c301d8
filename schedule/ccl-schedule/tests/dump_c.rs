//! A schedule as tables in C: a compiled C program walks them, and finds what the schedule says.
#![allow(missing_docs)]

use ccl_schedule::algo::{self, Shape};
use ccl_schedule::{Dir, Land, Op, Program, Tile, dump_c};
use std::fmt::Write;
use std::process::Command;

/// The same rows by another way: from the operations' own words.
fn rows(program: &dyn Program) -> String {
    let dirs = program.dirs();
    let at = |dir: Dir| dirs.iter().position(|known| *known == dir).unwrap() as i64;
    let name = |dir: Dir| format!("{}:{}", at(dir), dir);
    let source = |tile: Tile| match tile {
        Tile::Mem(tile) => format!("tile {tile}"),
        Tile::Held(dir) => format!("held {}", at(dir)),
        Tile::Take(dir) => format!("take {}", at(dir)),
    };
    let mut text = String::new();
    for rank in 0..program.ranks() {
        for dir in dirs {
            match program.peer(rank, *dir) {
                Some((peer, from)) => {
                    writeln!(text, "{rank} {} -> {peer} {}", name(*dir), name(from)).unwrap()
                }
                None => writeln!(text, "{rank} {} -> nobody", name(*dir)).unwrap(),
            }
        }
        for op in (0..).map_while(|step| program.op(rank, step)) {
            let line = match op {
                Op::Send { dir, chunk, from } => format!("send {} {chunk} {}", name(dir), source(from)),
                Op::Recv { dir, tile, land: Land::Copy } => format!("recv {} {tile}", name(dir)),
                Op::Recv { dir, tile, land: Land::Reduce } => format!("recv_add {} {tile}", name(dir)),
                Op::Recv { dir, tile, land: Land::Forward } => format!("hold {} {tile}", name(dir)),
                Op::RecvAsync { dir, tile, land: Land::Reduce } => format!("post_add {} {tile}", name(dir)),
                Op::RecvAsync { dir, tile, .. } => format!("post {} {tile}", name(dir)),
                Op::Wait { dir } => format!("wait {}", name(dir)),
                Op::Copy { from, to } => format!("copy {to} {}", source(from)),
                Op::Reduce { from, to } => format!("add {to} {}", source(from)),
                Op::Store { from, to } => format!("store {to} {from}"),
                Op::Math { .. } => unreachable!("no schedule of the library computes"),
            };
            writeln!(text, "{rank} {line}").unwrap();
        }
    }
    text
}

const WALK: &str = r#"
#include <stdio.h>
#define NAME(a, b) a##b
#define ROWS(a, b) NAME(a, b)
static void source(int from) {
    if (from >= 0) printf("tile %d\n", from);
    else printf("%s %d\n", (-from) % 2 ? "held" : "take", (-from - 1) / 2);
}
static void dir(int at) { printf("%d:%s", at, ROWS(SCHEDULE, _dirs)[at]); }
int main(void) {
    static const char *const kinds[] = {"send", "recv", "recv_add", "hold", "post", "post_add", "wait", "copy", "add", "store"};
    for (unsigned rank = 0; rank < RANKS; ++rank) {
        for (int at = 0; at < DIRS; ++at) {
            printf("%u ", rank);
            dir(at);
            int peer = ROWS(SCHEDULE, _peers)[rank][at].rank;
            if (peer < 0) { printf(" -> nobody\n"); continue; }
            printf(" -> %d ", peer);
            dir(ROWS(SCHEDULE, _peers)[rank][at].dir);
            printf("\n");
        }
        for (unsigned at = ROWS(SCHEDULE, _first)[rank]; at < ROWS(SCHEDULE, _first)[rank + 1]; ++at) {
            int kind = ROWS(SCHEDULE, _ops)[at].kind, tile = ROWS(SCHEDULE, _ops)[at].tile;
            int from = ROWS(SCHEDULE, _ops)[at].from;
            printf("%u %s ", rank, kinds[kind]);
            if (kind <= 6) dir(ROWS(SCHEDULE, _ops)[at].dir);
            if (kind == 0) { printf(" %d ", tile); source(from); }
            else if (kind < 6) printf(" %d\n", tile);
            else if (kind == 6) printf("\n");
            else if (kind == 9) printf("%d %d\n", tile, from);
            else { printf("%d ", tile); source(from); }
        }
    }
    return 0;
}
"#;

#[test]
fn a_c_program_reads_every_channel_and_operation_from_the_tables() {
    let folder = tempfile::tempdir().unwrap();
    for names in algo::NAMES {
        let program = algo::build(names[0], 4, &Shape::default()).unwrap();
        let mut text = Vec::new();
        dump_c(&*program, &mut text).unwrap();
        let mut source = String::from_utf8(text).unwrap();
        writeln!(
            source,
            "#define SCHEDULE {}\n#define RANKS {}\n#define DIRS {}\n{WALK}",
            names[0],
            program.ranks(),
            program.dirs().len()
        )
        .unwrap();
        let (file, walk) = (folder.path().join("walk.c"), folder.path().join("walk"));
        std::fs::write(&file, source).unwrap();
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-o"];
        let built = Command::new(compiler).args(flags).arg(&walk).arg(&file).output().unwrap();
        assert!(built.status.success(), "{}: {}", names[0], String::from_utf8_lossy(&built.stderr));
        let walked = Command::new(&walk).output().unwrap();
        assert_eq!(String::from_utf8(walked.stdout).unwrap(), rows(&*program), "{}", names[0]);
    }
}
