//! The rooms of the crate and their doors: `parent` and `child` know `shared`, and none of the three knows
//! more.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};

/// All source files of a room.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
    files.into_iter().chain(folders.iter().flat_map(|folder| self::files(folder))).collect()
}

/// Lines of `room` that name `other`, however they import it.
fn lines_naming(room: &str, other: &str) -> Vec<String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = files(&src.join(room));
    assert!(!files.is_empty(), "there is no room {room}");
    let names = [format!("crate::{other}::"), format!("crate::{{{other}"), format!("super::{other}::")];
    let found = files.iter().flat_map(|file| {
        let text = std::fs::read_to_string(file).unwrap();
        let hits = text.lines().filter(|line| names.iter().any(|name| line.contains(name)));
        hits.map(|line| format!("{}: {line}", file.display())).collect::<Vec<_>>()
    });
    found.collect()
}

#[test]
fn parent_and_child_meet_in_shared_only() {
    for (room, other) in [("parent", "child"), ("child", "parent"), ("shared", "parent"), ("shared", "child")]
    {
        assert_eq!(lines_naming(room, other), Vec::<String>::new(), "{room} must not know {other}");
    }
    // The search finds what it looks for.
    assert!(!lines_naming("parent", "shared").is_empty() && !lines_naming("child", "shared").is_empty());
}

/// Each room's surface is what its `mod.rs` exports.
#[test]
fn a_room_is_entered_through_its_door() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for room in ["parent", "child", "shared"] {
        let door = std::fs::read_to_string(src.join(room).join("mod.rs")).unwrap();
        assert!(!door.lines().any(|line| line.starts_with("pub") && line.contains(" mod ")), "{room}");
    }
}
