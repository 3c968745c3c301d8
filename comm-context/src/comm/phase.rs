//! What a rank is doing: the word it publishes and the name that errors print.

worker_errors::code_table! {
    /// The step of a communicator's life in which something happened.
    ///
    /// A backend publishes the code in shared memory, so that a timeout can show where every rank is (F44).
    pub enum Phase: u32, code, from_code {
        /// Between calls.
        Idle = 0, "idle";
        /// Finding the peers and joining them.
        Init = 1, "init";
        /// In `alloc_windows`.
        AllocWindows = 2, "alloc_windows";
        /// In `derive_context`.
        DeriveContext = 3, "derive_context";
        /// In `alloc_domain`.
        AllocDomain = 4, "alloc_domain";
        /// In `release_domain`.
        ReleaseDomain = 5, "release_domain";
        /// In `barrier`.
        Barrier = 6, "barrier";
        /// In `read` or `write`.
        Transfer = 7, "transfer";
        /// In `destroy`.
        Destroy = 8, "destroy";
        /// `destroy` has returned.
        Gone = 9, "gone";
        /// In a collective on windows.
        Collective = 10, "collective";
    }
}

#[cfg(test)]
mod tests {
    use super::Phase;

    // CC-7
    #[test]
    fn every_phase_survives_its_code_and_every_other_code_is_refused() {
        for (index, &phase) in Phase::ALL.iter().enumerate() {
            assert_eq!(phase.code() as usize, index);
            assert_eq!(Phase::from_code(phase.code()), Some(phase));
        }
        for code in [Phase::ALL.len() as u32, u32::MAX] {
            assert_eq!(Phase::from_code(code), None);
        }
    }
}
