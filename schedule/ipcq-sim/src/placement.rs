//! How a tensor is spread over SIPs, cubes and PEs: one policy per level, one shard per rank.

use crate::config::Topology;
use std::str::FromStr;
use thiserror::Error;

/// What a level does with its part of the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Every member holds all of it.
    Replicate,
    /// Members split the columns.
    ColumnWise,
    /// Members split the rows.
    RowWise,
}

/// A level: its policy, and how many of its members are used (all when unset).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The policy.
    pub policy: Policy,
    /// Members in use.
    pub count: Option<u32>,
}

/// Policies for SIPs, cubes and PEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Across SIPs.
    pub sip: Level,
    /// Across the cubes of a SIP.
    pub cube: Level,
    /// Across the PEs of a cube.
    pub pe: Level,
}

/// Why a tensor cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// An unknown policy.
    #[error(
        "unknown placement policy {0:?}; use replicate, column_wise or row_wise, with an optional count: row_wise:4"
    )]
    Unknown(String),
    /// More members than the level has.
    #[error("{level} count = {count}: the topology has {have}")]
    TooMany {
        /// The level.
        level: &'static str,
        /// Members asked for.
        count: u32,
        /// Members of the level.
        have: u32,
    },
    /// Not exactly one shard per rank.
    #[error(
        "the placement makes {sips} x {cubes} x {pes} = {} shards, world_size = {world_size} needs exactly as many; \
         give counts that multiply to it", u64::from(*sips) * u64::from(*cubes) * u64::from(*pes)
    )]
    NotWorldSize {
        /// SIPs in use.
        sips: u32,
        /// Cubes of a SIP in use.
        cubes: u32,
        /// PEs of a cube in use.
        pes: u32,
        /// Ranks.
        world_size: u32,
    },
    /// A level does not divide the tensor.
    #[error("{level} cannot split {size} {what} into {parts} equal parts")]
    Uneven {
        /// The level.
        level: &'static str,
        /// Rows or columns.
        what: &'static str,
        /// How many there are at that level.
        size: u64,
        /// Members.
        parts: u32,
    },
}

impl FromStr for Level {
    type Err = PlacementError;
    fn from_str(text: &str) -> Result<Level, PlacementError> {
        let unknown = || PlacementError::Unknown(text.to_owned());
        let (policy, count) = match text.split_once(':') {
            Some((policy, count)) => (policy, Some(count.parse().map_err(|_| unknown())?)),
            None => (text, None),
        };
        let policy = match policy {
            "replicate" => Policy::Replicate,
            "column_wise" => Policy::ColumnWise,
            "row_wise" => Policy::RowWise,
            _ => return Err(unknown()),
        };
        Ok(Level { policy, count })
    }
}

/// A part of a tensor: rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First row.
    pub row: u64,
    /// First column.
    pub col: u64,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
}

impl Placement {
    /// The same policy on every level, with counts that give `world_size` shards from the first PEs on.
    ///
    /// Whole cubes and whole SIPs are used where the number allows; otherwise the placement is refused later.
    pub fn uniform(policy: Policy, topology: &Topology, world_size: u32) -> Placement {
        let [pes, cubes, _] = topology.levels();
        let pe = world_size.min(pes);
        let cube = (world_size / pe.max(1)).clamp(1, cubes);
        let sip = (world_size / (pe * cube).max(1)).max(1);
        let level = |count| Level { policy, count: Some(count) };
        Placement { sip: level(sip), cube: level(cube), pe: level(pe) }
    }

    /// The part of every rank, by rank. A rank number contains its SIP, cube and PE.
    pub fn parts(
        &self,
        topology: &Topology,
        world_size: u32,
        rows: u64,
        cols: u64,
    ) -> Result<Vec<Part>, PlacementError> {
        let have = topology.levels();
        let levels = [("sip", self.sip, have[2]), ("cube", self.cube, have[1]), ("pe", self.pe, have[0])];
        let mut counts = [0; 3];
        for (i, (level, Level { count, .. }, have)) in levels.into_iter().enumerate() {
            counts[i] = count.unwrap_or(have);
            if counts[i] > have || counts[i] == 0 {
                return Err(PlacementError::TooMany { level, count: counts[i], have });
            }
        }
        let [sips, cubes, pes] = counts;
        if u64::from(sips) * u64::from(cubes) * u64::from(pes) != u64::from(world_size) {
            return Err(PlacementError::NotWorldSize { sips, cubes, pes, world_size });
        }
        let mut parts = vec![Part { row: 0, col: 0, rows, cols }];
        for ((level, Level { policy, .. }, _), parts_of) in levels.into_iter().zip(counts) {
            let mut next = Vec::with_capacity(parts.len() * parts_of as usize);
            for part in parts {
                for i in 0..u64::from(parts_of) {
                    next.push(split(part, policy, i, parts_of, level)?);
                }
            }
            parts = next;
        }
        Ok(parts)
    }
}

fn split(part: Part, policy: Policy, i: u64, of: u32, level: &'static str) -> Result<Part, PlacementError> {
    let n = u64::from(of);
    match policy {
        Policy::Replicate => Ok(part),
        Policy::RowWise if part.rows.is_multiple_of(n) => {
            Ok(Part { row: part.row + i * (part.rows / n), rows: part.rows / n, ..part })
        }
        Policy::RowWise => Err(PlacementError::Uneven { level, what: "rows", size: part.rows, parts: of }),
        Policy::ColumnWise if part.cols.is_multiple_of(n) => {
            Ok(Part { col: part.col + i * (part.cols / n), cols: part.cols / n, ..part })
        }
        Policy::ColumnWise => {
            Err(PlacementError::Uneven { level, what: "columns", size: part.cols, parts: of })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_wise_on_every_level_gives_each_rank_its_row_across_sips() {
        let topology = Topology::default();
        let placement = Placement::uniform(Policy::RowWise, &topology, 256);
        let parts = placement.parts(&topology, 256, 256, 8).unwrap();
        // The rank number holds the SIP: rank 128 is the first PE of SIP 1 and not rank 0 again.
        for (rank, part) in parts.iter().enumerate() {
            assert_eq!(*part, Part { row: rank as u64, col: 0, rows: 1, cols: 8 });
        }
    }

    #[test]
    fn policies_mix_and_replicas_share_their_part() {
        let level = |text: &str| text.parse::<Level>().unwrap();
        let placement =
            Placement { sip: level("replicate"), cube: level("row_wise:2"), pe: level("column_wise:4") };
        let parts = placement.parts(&Topology::default(), 16, 4, 8).unwrap();
        assert_eq!(parts[5], Part { row: 2, col: 2, rows: 2, cols: 2 });
        assert_eq!(parts[5], parts[13]);
    }

    #[test]
    fn unequal_parts_are_refused() {
        let topology = Topology::default();
        let fail = |world, rows| {
            Placement::uniform(Policy::RowWise, &topology, world)
                .parts(&topology, world, rows, 8)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            fail(9, 9),
            "the placement makes 1 x 1 x 8 = 8 shards, world_size = 9 needs exactly as many; give counts that multiply \
             to it"
        );
        assert_eq!(fail(8, 9), "pe cannot split 9 rows into 8 equal parts");
        assert_eq!(fail(1024, 1024), "sip count = 8: the topology has 2");
        for policy in ["diagonal", "row_wise:many"] {
            assert_eq!(
                policy.parse::<Level>().unwrap_err().to_string(),
                format!(
                    "unknown placement policy {policy:?}; use replicate, column_wise or row_wise, with an optional \
                     count: row_wise:4"
                )
            );
        }
    }
}
