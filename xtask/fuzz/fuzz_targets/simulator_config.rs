//! The configuration files of the simulator of processing elements, and what `--set` changes in them: refused with the
//! place and a sentence, or used.
#![no_main]

use ipcq_sim::config::{CclFile, Config, TopologyFile};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, text)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(text);
    let file = Path::new("fuzz.yaml");
    let read = match kind % 3 {
        0 => CclFile::parse(&text, file).map(drop),
        1 => TopologyFile::parse(&text, file).map(drop),
        _ => return set(&text),
    };
    if let Err(error) = read {
        let text = error.to_string();
        assert!(text.starts_with("fuzz.yaml") && !text.chars().any(|c| c.is_control()), "{text:?}");
    }
});

fn set(text: &str) {
    let mut config = Config::load(None, None).unwrap_or_else(|error| panic!("{error}"));
    for line in text.lines().take(8) {
        if let Err(error) = config.set(line) {
            assert!(!error.to_string().is_empty());
        }
    }
}
