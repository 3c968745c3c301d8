//! What the fuzz target `graph_descriptions` asserts. It is part of the crate because what it calls is private, and is compiled
//! for fuzzing and for a test only, which changes the seeds of the target at random.

/// The calls of an orchestration in C++: its argument lists, descriptors, ids and waits.
#[cfg(feature = "cxx")]
pub fn orchestration(bytes: &[u8]) {
    crate::orchestration::fuzzing::calls(bytes);
}

/// What a peer declares to signal, and what it says that it waits for.
pub fn hostile_peer(bytes: &[u8]) {
    crate::signals::fuzzing::hostile_peer(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds of the fuzz target; none in a package.
    fn seeds() -> Vec<Vec<u8>> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../xtask/fuzz/corpus/graph_descriptions");
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<_> = files.map(|file| file.path()).collect();
        files.sort();
        files.iter().filter_map(|file| std::fs::read(file).ok()).collect()
    }

    /// Some bytes of a seed replaced, left out or doubled.
    fn changed(seed: &[u8], mut random: impl FnMut() -> usize) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..random() % 4 {
            let at = random() % bytes.len().max(1);
            match random() % 3 {
                0 if at < bytes.len() => bytes[at] = random() as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes.extend_from_within(at.min(bytes.len())..),
            }
        }
        bytes
    }

    fn all(rounds: usize) {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for seed in seeds() {
            for round in 0..rounds {
                let bytes = if round == 0 { seed.clone() } else { changed(&seed, &mut random) };
                let Some((&kind, bytes)) = bytes.split_first() else { continue };
                if kind % 2 == 1 {
                    hostile_peer(bytes);
                } else {
                    #[cfg(feature = "cxx")]
                    orchestration(bytes);
                }
            }
        }
    }

    /// CR-5, CR-7
    #[test]
    fn whatever_an_orchestration_or_a_peer_says_is_refused_or_runs_inside_known_memory() {
        all(20);
    }
}
