//! A schedule as JSON, written rank by rank as it is generated.

use crate::op::{Dir, Op, Tile};
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
