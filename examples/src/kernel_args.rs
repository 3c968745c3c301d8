//! What the kernel of `--kernel` is given, when `--args` says so.

use crate::cli::Flag;
use std::str::FromStr;

/// The flag behind [`KernelArgs`].
pub const ARGS_FLAGS: &[Flag] = &[Flag::with_value(
    "args",
    "LIST",
    "Give the kernel of --kernel these scalars and no tensors, in this order, separated by commas: input and output \
     (floats in this rank's window, where the program stages and collects them), data, signals, ctx, nranks, rank, \
     root, count",
)];

/// One argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelArg {
    /// The address of this rank's input, in its window.
    Input,
    /// The address of this rank's output, in its window.
    Output,
    /// The address of this rank's "data".
    Data,
    /// The address of this rank's "signals".
    Signals,
    /// The address of its `CommContext`.
    Ctx,
    /// How many ranks there are.
    NRanks,
    /// This rank.
    Rank,
    /// The root; 0 where a program has none.
    Root,
    /// How many floats its input has.
    Count,
}

const NAMES: [(&str, KernelArg); 9] = [
    ("input", KernelArg::Input),
    ("output", KernelArg::Output),
    ("data", KernelArg::Data),
    ("signals", KernelArg::Signals),
    ("ctx", KernelArg::Ctx),
    ("nranks", KernelArg::NRanks),
    ("rank", KernelArg::Rank),
    ("root", KernelArg::Root),
    ("count", KernelArg::Count),
];

/// The arguments of a kernel, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelArgs(pub Vec<KernelArg>);

impl FromStr for KernelArgs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let arg = |name: &str| {
            NAMES.iter().find(|(known, _)| *known == name).map(|(_, arg)| *arg).ok_or_else(|| {
                let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
                format!("there is no argument {name:?}; there are {}", known.join(", "))
            })
        };
        text.split(',').map(arg).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_named_in_order_and_a_misspelt_one_is_refused() {
        let args: KernelArgs = "input,output,nranks,root,ctx".parse().unwrap();
        use KernelArg::{Ctx, Input, NRanks, Output, Root};
        assert_eq!(args.0, [Input, Output, NRanks, Root, Ctx]);
        let refused = "input,outptu".parse::<KernelArgs>().unwrap_err();
        assert!(refused.contains("\"outptu\"") && refused.contains("input, output, data"), "{refused}");
    }
}
