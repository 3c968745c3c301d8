//! The headers as C and C++ compilers see them.
// Miri cannot start compilers.
#![cfg(all(feature = "std", not(miri)))]

mod build;
mod kernel;
mod layout;
mod orchestration;
