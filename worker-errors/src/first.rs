//! The first error wins.

use std::sync::OnceLock;

use crate::Failure;

/// Keeps the first failure that any thread of this process reports; later ones do not hide it.
///
/// A failure that is worth keeping but came second is given back, so that the caller can log it.
#[derive(Debug, Default)]
pub struct FirstError(OnceLock<Failure>);

impl FirstError {
    /// An empty cell.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Keeps `failure` and returns where it is kept, or gives it back because another came first.
    pub fn report(&self, failure: Failure) -> Result<&Failure, Failure> {
        let mut mine = Some(failure);
        let kept = self.0.get_or_init(|| mine.take().expect("get_or_init calls this at most once"));
        match mine {
            None => Ok(kept),
            Some(second) => Err(second),
        }
    }

    /// The first failure, if there was one.
    pub fn get(&self) -> Option<&Failure> {
        self.0.get()
    }

    /// `Err` with a copy of the first failure, if there was one: what every later operation answers.
    pub fn check(&self) -> Result<(), Failure> {
        self.get().map_or(Ok(()), |first| Err(first.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;
    use std::sync::Barrier;

    // WE-4
    #[test]
    fn f07_of_many_threads_exactly_one_wins_and_everybody_sees_it() {
        const THREADS: u32 = 8;
        for _ in 0..if cfg!(miri) { 2 } else { 50 } {
            let cell = FirstError::new();
            let start = Barrier::new(THREADS as usize);
            let winners: Vec<u32> = std::thread::scope(|scope| {
                let report = |rank| {
                    let failure = Failure::new(ErrorCode::Task, "failed").on_rank(rank);
                    start.wait();
                    match cell.report(failure) {
                        Ok(kept) => {
                            assert_eq!(kept.rank, Some(rank));
                            Some(rank)
                        }
                        Err(mine) => {
                            assert_eq!(mine.rank, Some(rank));
                            assert!(cell.get().is_some_and(|first| first.rank != Some(rank)));
                            None
                        }
                    }
                };
                let threads: Vec<_> = (0..THREADS).map(|rank| scope.spawn(move || report(rank))).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(winners.len(), 1);
            assert_eq!(cell.check().unwrap_err().rank, Some(winners[0]));
        }
    }

    #[test]
    fn an_empty_cell_has_nothing_to_say() {
        assert_eq!(FirstError::new().check(), Ok(()));
    }
}
