//! The programs as their users run them: right results, refusals, and what happens when something dies.

mod first;
mod graphs;
mod kill;
mod output;
mod right;
mod support;
mod usage;
