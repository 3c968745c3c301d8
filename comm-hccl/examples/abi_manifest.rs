//! Prints the C++ that pins every vendor declaration; `cargo xtask abi-check` compiles it against the
//! vendor's headers.
//!
//! With `--distorted` every declaration is slightly wrong, and every check must fail.

use comm_hccl::sys::manifest::{Manifest, Truth};

fn main() {
    let truth = match std::env::args().nth(1).as_deref() {
        None => Truth::AsDeclared,
        Some("--distorted") => Truth::Distorted,
        Some(other) => {
            eprintln!("unknown argument {other:?}; the only one is --distorted");
            std::process::exit(2);
        }
    };
    print!("{}", Manifest::of_sys().to_cpp(truth));
}
