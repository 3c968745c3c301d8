//! Smaller groups out of a larger one.

use crate::error::CollError;
use crate::group::Collectives;

impl<'c> Collectives<'c> {
    /// Makes a group of all ranks that pass the same color, in the order of their keys, and of their ranks where keys are equal: collective
    /// among all ranks of this group. Who passes no color takes part and gets none.
    ///
    /// ```
    /// # use collectives::{Collectives, Options};
    /// # use comm_context::comm::{Membership, Timeout};
    /// # use comm_sim::SimComm;
    /// # type Error = Box<dyn std::error::Error + Send + Sync>;
    /// # let path = std::env::temp_dir().join(format!("split-{}", std::process::id()));
    /// // What each of three ranks does.
    /// let rank = |group: &Collectives<'_>| -> Result<(), Error> {
    ///     // Ranks 2 and 0, in that order; rank 1 is in no group.
    ///     let color = (group.rank() != 1).then_some(7);
    ///     if let Some(pair) = group.split(color, -(group.rank() as i64))? {
    ///         let mut old_ranks = [0; 2];
    ///         pair.all_gather(&[group.rank() as u32], &mut old_ranks)?;
    ///         assert_eq!(old_ranks, [2, 0]);
    ///         pair.close()?;
    ///     }
    ///     Ok(())
    /// };
    /// # let join = |number: u32| -> Result<(), Error> {
    /// #     let comm = SimComm::rendezvous(&path, Membership::new(number, 3)?, Timeout::DEFAULT)?;
    /// #     let group = Collectives::new(&comm, Options::new())?;
    /// #     rank(&group)?;
    /// #     Ok(group.close()?)
    /// # };
    /// # std::thread::scope(|scope| {
    /// #     let ranks: Vec<_> = (0..3).map(|number| scope.spawn({ let join = &join; move || join(number) })).collect();
    /// #     ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    /// # })?;
    /// # Ok::<_, Error>(())
    /// ```
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, CollError> {
        let mine = [color.map_or(-1, i64::from), key];
        let mut all = vec![0_i64; 2 * self.nranks()];
        self.all_gather(&mine, &mut all)?;
        let Some(color) = color else { return Ok(None) };
        let mut members: Vec<(i64, usize)> = (0..self.nranks())
            .filter(|rank| all[2 * rank] == i64::from(color))
            .map(|rank| (all[2 * rank + 1], rank))
            .collect();
        members.sort_unstable();
        let ranks: Vec<u32> = members.iter().map(|(_, rank)| self.members()[*rank]).collect();
        Self::over(self.comm().clone(), &ranks, self.options()).map(Some)
    }
}
