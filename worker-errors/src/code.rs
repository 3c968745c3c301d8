//! The one table of error codes, and the macro for tables of codes that cross a process border.

/// Declares an enum whose numbers cross a process or language border: one row a variant, with its number and
/// its name.
///
/// The enum gets `ALL`, `name()`, `Display`, and the two conversions that its head names. A number without a
/// row has no variant.
///
/// ```
/// worker_errors::code_table! {
///     /// A direction.
///     pub enum Direction: u8, code, from_code {
///         /// Towards the first rank.
///         Down = 1, "down";
///         /// Towards the last rank.
///         Up = 2, "up";
///     }
/// }
/// assert_eq!(Direction::from_code(2), Some(Direction::Up));
/// assert_eq!(Direction::from_code(0), None);
/// assert_eq!(Direction::Down.to_string(), "down");
/// ```
#[macro_export]
macro_rules! code_table {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Table:ident: $number:ident, $to:ident, $from:ident {
            $($(#[$doc:meta])* $Variant:ident = $value:literal, $name:literal;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($number)]
        $vis enum $Table {
            $($(#[$doc])* $Variant = $value,)+
        }

        impl $Table {
            /// Every variant, in the order of the table.
            $vis const ALL: &[Self] = &[$(Self::$Variant),+];

            /// The number that crosses the border.
            $vis const fn $to(self) -> $number {
                self as $number
            }

            /// The variant of a number from the other side; `None` for an unknown number.
            $vis fn $from(number: $number) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| *known as $number == number)
            }

            /// The name, as errors and tables print it.
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }
        }

        impl ::core::fmt::Display for $Table {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

code_table! {
    /// The kind of a failure: the codes of every crate, of the wire forms and of `comm.h`.
    ///
    /// The numbers cross processes and languages. They never change and are never reused; 0 is success and
    /// not a code.
    pub enum ErrorCode: i32, as_i32, from_i32 {
        /// A wrong argument or setting, or a call in the wrong state; refused before anything was created.
        Invalid = 1, "invalid argument";
        /// The deadline passed while every peer was alive.
        TimedOut = 2, "timed out";
        /// The process of a peer is gone.
        PeerDied = 3, "peer died";
        /// A peer left in order while it was still needed.
        PeerLeft = 4, "peer left";
        /// The run was aborted because of another failure.
        Aborted = 5, "aborted";
        /// Not enough memory.
        OutOfMemory = 6, "out of memory";
        /// The operating system refused a call.
        System = 7, "system error";
        /// A vendor library refused a call.
        Vendor = 8, "vendor error";
        /// Two sides disagree on something that must be the same.
        Mismatch = 9, "mismatch";
        /// Bytes from another process do not follow the protocol.
        Protocol = 10, "protocol error";
        /// A panic was caught.
        Panic = 11, "panic";
        /// A child process exited on its own.
        Exited = 12, "exited";
        /// A signal ended a child process.
        Killed = 13, "killed";
        /// A task or a kernel reported failure.
        Task = 14, "task failed";
        /// A library, kernel or symbol could not be loaded.
        Load = 15, "load failed";
        /// The object was closed before.
        Closed = 16, "closed";
        /// A bug of this program.
        Internal = 17, "internal error";
        /// A peer could not do its part of a collective operation, which was undone on every member.
        PeerFailed = 18, "peer failed";
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorCode;
    use std::collections::HashSet;

    // WE-1
    #[test]
    fn every_code_survives_its_number_and_every_other_number_is_refused() {
        for (index, code) in ErrorCode::ALL.iter().enumerate() {
            assert_eq!(code.as_i32(), index as i32 + 1, "{code:?}");
            assert_eq!(ErrorCode::from_i32(code.as_i32()), Some(*code));
        }
        let last = ErrorCode::ALL.len() as i32;
        for number in [i32::MIN, -1, 0, last + 1, i32::MAX] {
            assert_eq!(ErrorCode::from_i32(number), None, "{number}");
        }
    }

    #[test]
    fn names_differ() {
        let names: HashSet<_> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), ErrorCode::ALL.len());
    }
}
