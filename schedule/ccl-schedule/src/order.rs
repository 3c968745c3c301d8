//! The third algebra: expressions. It decides in which order contributions are added.
//!
//! Floating-point sums depend on the order of the additions. A schedule that adds in the order of the ranks, 0 first, on every rank
//! and chunk gives all ranks the same bits, and the same bits as every other schedule that does.

use crate::program::{Expect, Program};
use crate::prove::{ProofError, finished};
use crate::untimed::{Algebra, CreditPoint};
use crate::wiring::Wiring;
use std::collections::HashMap;
use std::fmt;
use thiserror::Error;

/// An expression: a contribution, a sum in the order of the ranks, or a number in the table of other sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Expr {
    Empty,
    /// `(start + (start + 1)) + …`, up to and without `end`: the contributions of these ranks, added one by one.
    InOrder {
        start: u32,
        end: u32,
    },
    Other(u32),
}

/// Sums by their two sides.
#[derive(Default)]
struct Expressions {
    sums: Vec<(Expr, Expr)>,
    known: HashMap<(Expr, Expr), u32>,
}

impl Algebra for Expressions {
    type Value = Expr;
    const EMPTY: Expr = Expr::Empty;

    fn initial(&mut self, rank: u32, _chunk: u32) -> Expr {
        Expr::InOrder { start: rank, end: rank + 1 }
    }

    fn add(&mut self, a: Expr, b: Expr) -> Expr {
        match (a, b) {
            (Expr::Empty, one) | (one, Expr::Empty) => one,
            (Expr::InOrder { start, end }, Expr::InOrder { start: next, end: after })
                if next == end && after == end + 1 =>
            {
                Expr::InOrder { start, end: after }
            }
            pair => {
                let number = *self.known.entry(pair).or_insert_with(|| {
                    self.sums.push(pair);
                    self.sums.len() as u32 - 1
                });
                Expr::Other(number)
            }
        }
    }
}

impl Expressions {
    /// The expression as people write it, cut where it gets long.
    fn text(&self, expr: Expr, depth: u32) -> String {
        match expr {
            Expr::Empty => "nothing".to_owned(),
            Expr::InOrder { start, end } if end == start + 1 => start.to_string(),
            Expr::InOrder { start, end } if end == start + 2 => format!("{start} + {}", start + 1),
            Expr::InOrder { start, end } => format!("{start} + … + {}", end - 1),
            Expr::Other(_) if depth == 0 => "…".to_owned(),
            Expr::Other(number) => {
                let (a, b) = self.sums[number as usize];
                let side = |expr: Expr| match expr {
                    Expr::InOrder { start, end } if end == start + 1 => self.text(expr, 0),
                    _ => format!("({})", self.text(expr, depth - 1)),
                };
                format!("{} + {}", side(a), side(b))
            }
        }
    }
}

/// A sum that is not in the order of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherOrder {
    /// The first rank that has one.
    pub rank: u32,
    /// Its first chunk that is one.
    pub chunk: u32,
    /// The sum, with ranks for their contributions.
    pub sum: String,
}

impl fmt::Display for OtherOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {}, chunk {}: adds {}, not in the order of the ranks",
            self.rank, self.chunk, self.sum
        )
    }
}

/// Why a schedule is not in rank order.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OrderError {
    /// It is not even right.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// It adds in another order.
    #[error("{0}")]
    Order(OtherOrder),
}

/// Proves that every rank adds the contributions of every sum in the order of the ranks, one by one, from 0 on.
///
/// Chunks that are not sums of all ranks have nothing to prove.
pub fn prove_rank_order<P: Program + ?Sized>(
    program: &P,
    slots: u32,
    credit: CreditPoint,
) -> Result<(), OrderError> {
    let wiring = Wiring::install(program).map_err(ProofError::from)?;
    let run = finished(program, &wiring, Expressions::default(), slots, credit)?;
    for rank in 0..program.ranks() {
        for chunk in 0..program.chunks() {
            if program.goal().expect(program.ranks(), rank, chunk) != Expect::All {
                continue;
            }
            let sum = run.value(rank, chunk);
            if sum != (Expr::InOrder { start: 0, end: program.ranks() }) {
                let sum = run.algebra.text(sum, 4);
                return Err(OrderError::Order(OtherOrder { rank, chunk, sum }));
            }
        }
    }
    Ok(())
}
