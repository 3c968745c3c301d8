//! Smaller groups out of a larger one.

use crate::error::CollError;
use crate::group::Collectives;

impl<'c> Collectives<'c> {
    /// Makes a group of all ranks that pass the same color, in the order of their keys, and of their ranks where keys are equal: collective
    /// among all ranks of this group. Who passes no color takes part and gets none.
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
