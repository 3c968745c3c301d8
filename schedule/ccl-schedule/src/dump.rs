//! A schedule as JSON, written rank by rank as it is generated.

use crate::op::{Dir, Land, Op, Tile};
use crate::program::Program;
use std::io::{self, Write};

/// Writes the whole schedule as one JSON object: name, ranks, chunks, channels and every operation.
///
/// The text is streamed; a schedule of any size needs no memory here.
pub fn dump<P: Program + ?Sized>(program: &P, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{{")?;
    writeln!(out, "  \"name\": \"{}\",", program.name())?;
    writeln!(out, "  \"goal\": \"{}\",", program.goal())?;
    writeln!(out, "  \"ranks\": {},", program.ranks())?;
    writeln!(out, "  \"chunks\": {},", program.chunks())?;
    writeln!(out, "  \"scratch\": {},", program.scratch())?;
    writeln!(out, "  \"messages\": {},", program.messages())?;
    writeln!(out, "  \"channels\": [")?;
    let mut comma = "";
    for rank in 0..program.ranks() {
        for &dir in program.dirs() {
            if let Some((peer, peer_dir)) = program.peer(rank, dir) {
                write!(
                    out,
                    "{comma}    {{\"src\": {rank}, \"dir\": \"{dir}\", \"dst\": {peer}, \"from\": \"{peer_dir}\"}}"
                )?;
                comma = ",\n";
            }
        }
    }
    writeln!(out, "\n  ],\n  \"programs\": [")?;
    for rank in 0..program.ranks() {
        write!(out, "    [")?;
        let mut comma = "";
        for op in (0..).map_while(|step| program.op(rank, step)) {
            write!(out, "{comma}")?;
            operation(op, out)?;
            comma = ", ";
        }
        writeln!(out, "]{}", if rank + 1 < program.ranks() { "," } else { "" })?;
    }
    writeln!(out, "  ]\n}}")
}

/// Writes the schedule as tables in C: `NAME_ops[NAME_first[rank] .. NAME_first[rank + 1]]` are the operations of a rank, each
/// kind, direction, tile and source as numbers, and `NAME_peers[rank][direction]` is where a send goes.
///
/// Kinds: 0 send, 1 recv and copy, 2 recv and add, 3 recv and hold, 4 and 5 the posted ones of 1 and 2, 6 wait, 7 copy, 8 add,
/// 9 store. Sources: a tile, or -1 - 2 d for the held slot of direction d and -2 - 2 d for its last use. Computations other than
/// sums are refused.
pub fn dump_c<P: Program + ?Sized>(program: &P, out: &mut dyn Write) -> io::Result<()> {
    let dirs = program.dirs();
    let index = |dir: Dir| dirs.iter().position(|&known| known == dir).unwrap_or(0) as i64;
    let source = |from: Tile| match from {
        Tile::Mem(tile) => i64::from(tile),
        Tile::Held(dir) => -1 - 2 * index(dir),
        Tile::Take(dir) => -2 - 2 * index(dir),
    };
    let land = |land: Land, posted: i64| match land {
        Land::Copy => 1 + posted,
        Land::Reduce => 2 + posted,
        Land::Forward => 3,
    };
    let name: String =
        program.name().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    writeln!(
        out,
        "/* {}: {}, {} ranks, {} chunks, {} scratch tiles. Generated. */",
        program.name(),
        program.goal(),
        program.ranks(),
        program.chunks(),
        program.scratch()
    )?;
    writeln!(out, "#include <stdint.h>\n")?;
    writeln!(
        out,
        "static const char *const {name}_dirs[] = {{{}}};",
        dirs.iter().map(|dir| format!("\"{dir}\"")).collect::<Vec<_>>().join(", ")
    )?;
    writeln!(
        out,
        "static const struct {{ int32_t rank, dir; }} {name}_peers[{}][{}] = {{",
        program.ranks(),
        dirs.len().max(1)
    )?;
    for rank in 0..program.ranks() {
        let peer = |dir: &Dir| match program.peer(rank, *dir) {
            Some((peer, from)) => format!("{{{peer}, {}}}", index(from)),
            None => "{-1, -1}".to_owned(),
        };
        writeln!(out, "    {{{}}},", dirs.iter().map(peer).collect::<Vec<_>>().join(", "))?;
    }
    writeln!(out, "}};\nstatic const struct {{ int32_t kind, dir, tile, from; }} {name}_ops[] = {{")?;
    let mut first = vec![0_usize];
    for rank in 0..program.ranks() {
        let mut count = 0;
        for op in (0..).map_while(|step| program.op(rank, step)) {
            let (kind, dir, tile, from) = match op {
                Op::Send { dir, chunk, from } => (0, index(dir), chunk, source(from)),
                Op::Recv { dir, tile, land: how } => (land(how, 0), index(dir), tile, 0),
                Op::RecvAsync { dir, tile, land: how } => (land(how, 3), index(dir), tile, 0),
                Op::Wait { dir } => (6, index(dir), 0, 0),
                Op::Copy { from, to } => (7, -1, to, source(from)),
                Op::Reduce { from, to } => (8, -1, to, source(from)),
                Op::Store { from, to } => (9, -1, to, i64::from(from)),
                Op::Math { .. } => {
                    return Err(io::Error::other("a computation has no row in a table of operations"));
                }
            };
            writeln!(out, "    {{{kind}, {dir}, {tile}, {from}}},")?;
            count += 1;
        }
        first.push(first[rank as usize] + count);
    }
    let first: Vec<String> = first.iter().map(usize::to_string).collect();
    writeln!(out, "}};\nstatic const uint32_t {name}_first[] = {{{}}};", first.join(", "))
}

fn operation(op: Op, out: &mut dyn Write) -> io::Result<()> {
    let receive = |out: &mut dyn Write, name: &str, dir: Dir, tile: u32, land: &str| {
        write!(out, "{{\"op\": \"{name}\", \"dir\": \"{dir}\", \"tile\": {tile}, \"land\": \"{land}\"}}")
    };
    match op {
        Op::Send { dir, chunk, from } => {
            write!(out, "{{\"op\": \"send\", \"dir\": \"{dir}\", \"chunk\": {chunk}, {}}}", source(from))
        }
        Op::Recv { dir, tile, land } => receive(out, "recv", dir, tile, land.name()),
        Op::RecvAsync { dir, tile, land } => receive(out, "recv_async", dir, tile, land.name()),
        Op::Wait { dir } => write!(out, "{{\"op\": \"wait\", \"dir\": \"{dir}\"}}"),
        Op::Copy { from, to } => write!(out, "{{\"op\": \"copy\", {}, \"to\": {to}}}", source(from)),
        Op::Reduce { from, to } => write!(out, "{{\"op\": \"reduce\", {}, \"to\": {to}}}", source(from)),
        Op::Store { from, to } => write!(out, "{{\"op\": \"store\", \"from\": {from}, \"to\": {to}}}"),
        Op::Math { number, to } => {
            write!(out, "{{\"op\": \"math\", \"number\": {number}, \"to\": {to}}}")
        }
    }
}

fn source(from: Tile) -> String {
    match from {
        Tile::Mem(tile) => format!("\"from\": {tile}"),
        Tile::Held(dir) => format!("\"held\": \"{dir}\""),
        Tile::Take(dir) => format!("\"take\": \"{dir}\""),
    }
}
