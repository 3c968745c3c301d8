//! The vendor's declarations, under the vendor's names, and nothing else.
//!
//! Every item here comes out of one of four tables: [`ascendcl`] and [`hccl`] (functions), [`types`]
//! (handles, integers, enumerations, structs) and [`codes`] (constants). A table writes each declaration once
//! and makes two things of it: the Rust item and its entry in the [`manifest`], which `cargo xtask abi-check`
//! compiles against the vendor's own headers. So every declaration is checked (HC-1).
//!
//! Nothing in this module calls the vendor; `load` resolves the tables and `result` reads the codes.

pub mod ascendcl;
pub mod codes;
pub mod hccl;
pub mod manifest;
pub mod types;

pub use ascendcl::AscendCl;
pub use codes::*;
pub use hccl::Hccl;
pub use types::*;

/// Whether the backend can work without a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Without it the library is refused.
    Required,
    /// Without it one feature is refused, by name, when it is asked for.
    Optional,
}

/// One function as a table declares it; types are spelled as in the Rust source.
#[derive(Debug, Clone, Copy)]
pub struct FunctionDecl {
    /// The exported symbol.
    pub name: &'static str,
    /// Whether the backend can do without it.
    pub need: Need,
    /// The type it returns.
    pub ret: &'static str,
    /// The types of its parameters, in order.
    pub args: &'static [&'static str],
}

/// Declares a library's functions: the table of typed pointers, how to fill it, and the manifest entries.
macro_rules! vendor_functions {
    (
        $(#[$meta:meta])*
        table $Table:ident of $file:literal;
        $( $(#[$fmeta:meta])* $need:ident fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty; )*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[allow(non_snake_case, reason = "the vendor's names")]
        pub struct $Table {
            $(
                $(#[$fmeta])*
                pub $name: vendor_functions!(@field $need unsafe extern "C" fn($($arg: $ty),*) -> $ret),
            )*
        }

        impl $Table {
            /// The library's file name.
            pub const FILE: &'static str = $file;

            /// Every function of the table, as declared.
            pub const FUNCTIONS: &'static [$crate::sys::FunctionDecl] = &[
                $( $crate::sys::FunctionDecl {
                    name: stringify!($name),
                    need: vendor_functions!(@need $need),
                    ret: stringify!($ret),
                    args: &[$(stringify!($ty)),*],
                }, )*
            ];

            /// Fills the table from `symbol`, or returns every required function that it does not find.
            ///
            /// # Safety
            /// A non-null pointer given for a name must be the address of that vendor function, with the type
            /// declared here, and must stay callable for the rest of the process.
            pub unsafe fn resolve(
                mut symbol: impl FnMut(&'static str) -> *mut core::ffi::c_void,
            ) -> Result<Self, Vec<&'static str>> {
                let missing: Vec<_> = Self::FUNCTIONS
                    .iter()
                    .filter(|f| f.need == $crate::sys::Need::Required && symbol(f.name).is_null())
                    .map(|f| f.name)
                    .collect();
                if !missing.is_empty() {
                    return Err(missing);
                }
                Ok(Self { $( $name: vendor_functions!(
                    @load $need symbol(stringify!($name)), unsafe extern "C" fn($($arg: $ty),*) -> $ret
                ), )* })
            }
        }
    };
    (@field required $f:ty) => { $f };
    (@field optional $f:ty) => { Option<$f> };
    (@need required) => { $crate::sys::Need::Required };
    (@need optional) => { $crate::sys::Need::Optional };
    (@load required $pointer:expr, $f:ty) => {{
        let pointer: *mut core::ffi::c_void = $pointer;
        // SAFETY: not null, or the function would be in `missing`; the caller of `resolve` vouches for its
        // type.
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, $f>(pointer) }
    }};
    (@load optional $pointer:expr, $f:ty) => {{
        let pointer: *mut core::ffi::c_void = $pointer;
        // SAFETY: an `Option` of a function pointer has the layout of a pointer with null as `None`; the
        // caller of `resolve` vouches for the type of a non-null one.
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, Option<$f>>(pointer) }
    }};
}
use vendor_functions;
