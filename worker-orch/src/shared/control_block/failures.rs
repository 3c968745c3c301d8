//! Failures and answers of a child in the control block: the child writes them, the parent copies them out.

use super::{ANSWER_AT, CHILD_BYTES, CHILDREN_AT, ControlBlock, FAILURE_AT, inside};
use deadline::monotonic_ns;
use worker_errors::{ErrorCode, Failure};

/// The longest failure, and the longest answer, of a child.
pub(crate) const ANSWER_BYTES: usize = 4096;

/// Stands for a run where a child records why it ends with an error.
const EXIT: u64 = u64::MAX;
/// Stands for a time where a task was skipped because of another failure.
const FOLLOWED: u64 = u64::MAX;

/// When a child failed in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedAt {
    /// One of its tasks failed at this time on the monotonic clock.
    Time(u64),
    /// Its tasks were skipped or cancelled because of another failure.
    Followed,
}

impl ControlBlock {
    /// The child's side: keeps its failure in run `run`. `None` when the task was skipped because of another
    /// failure.
    pub(crate) fn record_failure(
        &self,
        child: usize,
        run: u64,
        seq: u64,
        program: u32,
        failure: Option<&Failure>,
    ) {
        let words = self.child(child);
        let progress = &words.progress;
        match failure {
            Some(failure) => {
                self.write_failure(child, failure);
                progress.failed_at.store(monotonic_ns());
            }
            None => progress.failed_at.store(FOLLOWED),
        }
        progress.failed_program.store(program);
        progress.failed_seq.store(seq);
        words.parking.failed_run.store(run);
    }

    /// When `child` failed in run `run`; `None` if it did not.
    pub(crate) fn failed_at(&self, child: usize, run: u64) -> Option<FailedAt> {
        let words = self.child(child);
        (words.failed_run() == run).then(|| match words.progress.failed_at.load() {
            FOLLOWED => FailedAt::Followed,
            time => FailedAt::Time(time),
        })
    }

    /// The run of the failure that `child` recorded last, and the first task that it did not do.
    pub(crate) fn failed_task(&self, child: usize) -> (u64, u64) {
        let words = self.child(child);
        (words.failed_run(), words.progress.failed_seq.load())
    }

    /// The number of the program whose failure `child` recorded last.
    pub(crate) fn failed_program(&self, child: usize) -> u32 {
        self.child(child).progress.failed_program.load()
    }

    /// The failure that `child` recorded last.
    pub(crate) fn failure(&self, child: usize) -> Failure {
        Failure::decode(&self.read_failure(child)).unwrap_or_else(|error| {
            let text = format!(
                "its failure could not be read: {error}; it runs another build, or something overwrote its memory"
            );
            Failure::new(ErrorCode::Protocol, text)
        })
    }

    /// The child's side: keeps why it ends with an error after its last task.
    pub(crate) fn record_exit_failure(&self, child: usize, failure: &Failure) {
        self.write_failure(child, failure);
        self.child(child).parking.failed_run.store(EXIT);
    }

    /// Why a child that has ended did so with an error, if it recorded that.
    pub(crate) fn exit_failure(&self, child: usize) -> Option<Failure> {
        let recorded = self.child(child).failed_run() == EXIT;
        recorded.then(|| Failure::decode(&self.read_failure(child)).ok()).flatten()
    }

    fn write_failure(&self, child: usize, failure: &Failure) {
        let mut bytes = vec![0; ANSWER_BYTES];
        let len = failure.encode(&mut bytes).unwrap_or(0);
        inside(self.region.write(CHILDREN_AT + child * CHILD_BYTES + FAILURE_AT, &bytes[..len]));
        self.child(child).progress.failure_len.store(len as u32);
    }

    fn read_failure(&self, child: usize) -> Vec<u8> {
        let len = self.child(child).progress.failure_len.load();
        self.read_bytes(CHILDREN_AT + child * CHILD_BYTES + FAILURE_AT, len)
    }

    /// The child's side: the answer to its last command.
    pub(crate) fn write_answer(&self, child: usize, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(ANSWER_BYTES)];
        inside(self.region.write(CHILDREN_AT + child * CHILD_BYTES + ANSWER_AT, bytes));
        self.child(child).progress.answer_len.store(bytes.len() as u32);
    }

    pub(crate) fn read_answer(&self, child: usize) -> Vec<u8> {
        let len = self.child(child).progress.answer_len.load();
        self.read_bytes(CHILDREN_AT + child * CHILD_BYTES + ANSWER_AT, len)
    }

    fn read_bytes(&self, at: usize, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; (len as usize).min(ANSWER_BYTES)];
        inside(self.region.read(at, &mut bytes));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f29_lengths_beyond_the_slot_are_cut_and_garbage_is_a_failure_to_report() {
        let block = ControlBlock::create(1).unwrap();
        block.child(0).progress.failure_len.store(u32::MAX);
        block.child(0).progress.answer_len.store(u32::MAX);
        assert_eq!(block.read_answer(0).len(), ANSWER_BYTES);
        assert_eq!(block.failure(0).code, ErrorCode::Protocol);
        assert_eq!(block.exit_failure(0), None);
    }

    #[test]
    fn a_failure_belongs_to_its_run() {
        let block = ControlBlock::create(1).unwrap();
        let failure = Failure::new(ErrorCode::Task, "no");
        assert_eq!(block.failed_at(0, 3), None);
        block.record_failure(0, 3, 9, 7, Some(&failure));
        assert_eq!(block.failed_task(0), (3, 9));
        assert!(matches!(block.failed_at(0, 3), Some(FailedAt::Time(_))));
        assert_eq!((block.failed_program(0), block.failure(0)), (7, failure.clone()));
        assert_eq!(block.failed_at(0, 5), None);
        block.record_failure(0, 5, 11, 7, None);
        assert_eq!(block.failed_at(0, 5), Some(FailedAt::Followed));
        block.record_exit_failure(0, &failure);
        assert_eq!(block.exit_failure(0), Some(failure));
    }
}
