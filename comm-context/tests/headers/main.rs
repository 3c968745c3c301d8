//! The headers as C and C++ compilers see them.
#![cfg(feature = "std")]

mod build;
mod kernel;
mod layout;
