//! Reads the JSON that `dump` writes, so that a schedule can be edited and proved.

use ccl_schedule::{Dir, Goal, Land, ListedProgram, Op, Program, Tile};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a schedule file is refused.
#[derive(Debug, Error)]
pub enum ScheduleFileError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not the JSON that `dump` writes.
    #[error("{}: {source}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong, with line and column.
        source: serde_json::Error,
    },
    /// An invalid value.
    #[error("{}: {key} = {value}: {why}", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// Its key.
        key: &'static str,
        /// The value.
        value: String,
        /// What is wrong.
        why: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: String,
    goal: String,
    ranks: u32,
    chunks: u32,
    scratch: u32,
    messages: u64,
    channels: Vec<Wire>,
    programs: Vec<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    src: u32,
    dir: String,
    dst: u32,
    from: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "op")]
enum Entry {
    Send { dir: String, chunk: u32, from: Option<u32>, held: Option<String>, take: Option<String> },
    Recv { dir: String, tile: u32, land: String },
    RecvAsync { dir: String, tile: u32, land: String },
    Wait { dir: String },
    Copy { to: u32, from: Option<u32>, held: Option<String>, take: Option<String> },
    Reduce { to: u32, from: Option<u32>, held: Option<String>, take: Option<String> },
    Store { from: u32, to: u32 },
}

/// Reads a file.
pub fn load(file: &Path) -> Result<ListedProgram, ScheduleFileError> {
    let text = std::fs::read_to_string(file)
        .map_err(|source| ScheduleFileError::Unreadable { file: file.to_owned(), source })?;
    parse(&text, file)
}

/// Parses a text; `file` is what errors name.
pub fn parse(text: &str, file: &Path) -> Result<ListedProgram, ScheduleFileError> {
    let document: Document = serde_json::from_str(text)
        .map_err(|source| ScheduleFileError::Malformed { file: file.to_owned(), source })?;
    let bad = |key: &'static str, value: &str, why: &str| ScheduleFileError::Value {
        file: file.to_owned(),
        key,
        value: value.to_owned(),
        why: why.to_owned(),
    };
    let dir = |text: &str| Dir::parse(text).ok_or_else(|| bad("dir", text, "no such direction"));
    let goal = Goal::parse(&document.goal).filter(|_| document.ranks > 0 && document.chunks > 0).ok_or_else(
        || {
            bad(
                "goal",
                &document.goal,
                "use all_reduce, reduce_scatter:N, all_gather:N, broadcast:ROOT, reduce:ROOT, gather:ROOT:N, scatter:ROOT:N, \
                 all_to_all, shift or any, with ranks and chunks above 0",
            )
        },
    )?;
    if document.programs.len() != document.ranks as usize {
        let why = format!("there are {} programs; give one for each rank", document.programs.len());
        return Err(bad("ranks", &document.ranks.to_string(), &why));
    }
    let tile = |from: Option<u32>, held: &Option<String>, take: &Option<String>| match (from, held, take) {
        (Some(tile), None, None) => Ok(Tile::Mem(tile)),
        (None, Some(held), None) => Ok(Tile::Held(dir(held)?)),
        (None, None, Some(take)) => Ok(Tile::Take(dir(take)?)),
        _ => Err(bad("from", "?", "give exactly one of from, held and take")),
    };
    let land = |text: &str| match text {
        "copy" => Ok(Land::Copy),
        "reduce" => Ok(Land::Reduce),
        "forward" => Ok(Land::Forward),
        _ => Err(bad("land", text, "use copy, reduce or forward")),
    };
    let op = |entry: &Entry| -> Result<Op, ScheduleFileError> {
        Ok(match entry {
            Entry::Send { dir: d, chunk, from, held, take } => {
                Op::Send { dir: dir(d)?, chunk: *chunk, from: tile(*from, held, take)? }
            }
            Entry::Recv { dir: d, tile, land: l } => Op::Recv { dir: dir(d)?, tile: *tile, land: land(l)? },
            Entry::RecvAsync { dir: d, tile, land: l } => {
                Op::RecvAsync { dir: dir(d)?, tile: *tile, land: land(l)? }
            }
            Entry::Wait { dir: d } => Op::Wait { dir: dir(d)? },
            Entry::Copy { to, from, held, take } => Op::Copy { from: tile(*from, held, take)?, to: *to },
            Entry::Reduce { to, from, held, take } => Op::Reduce { from: tile(*from, held, take)?, to: *to },
            Entry::Store { from, to } => Op::Store { from: *from, to: *to },
        })
    };
    let lists = document.programs.iter().map(|list| list.iter().map(op).collect());
    let lists = lists.collect::<Result<Vec<Vec<Op>>, _>>()?;
    let mut program =
        ListedProgram::new(&document.name, goal, document.chunks, lists).with_scratch(document.scratch);
    if program.messages() != document.messages {
        let why = format!("the programs send {}; count them again", program.messages());
        return Err(bad("messages", &document.messages.to_string(), &why));
    }
    for wire in &document.channels {
        let (out, back) = (dir(&wire.dir)?, dir(&wire.from)?);
        if program.connect((wire.src, out), (wire.dst, back)).is_some() {
            let why = format!("direction {out} is wired twice; wire it once");
            return Err(bad("channels.src", &wire.src.to_string(), &why));
        }
    }
    Ok(program)
}
