//! What every vendor function of the double does first: the session, the check for a fork, the script of faults.

use crate::attach::{Attachment, Entry, attach};

/// Why a call is refused: the vendor's code, and the reason.
#[derive(Debug)]
pub struct Refusal {
    code: i32,
    reason: String,
}

impl Refusal {
    /// The vendor's code.
    pub fn code(&self) -> i32 {
        self.code
    }

    /// The reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// Refuses with a code and a reason.
pub fn refuse<T>(code: i32, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, reason: reason.into() })
}

/// Refuses unless a condition holds.
pub fn ensure(holds: bool, code: i32, reason: &str) -> Result<(), Refusal> {
    if holds { Ok(()) } else { refuse(code, reason) }
}

/// The codes with which a library refuses a call before it has looked at the arguments.
#[derive(Debug, Clone, Copy)]
pub struct GateCodes {
    /// There is no session, or it is malformed.
    pub no_session: i32,
    /// The process was forked after its first vendor call (CN-5).
    pub forked: i32,
}

/// Passes a call through the gate.
pub fn enter(function: &'static str, codes: GateCodes) -> Result<&'static Attachment, Refusal> {
    let attachment = attach().or_else(|error| refuse(codes.no_session, error.to_string()))?;
    if attachment.is_forked() {
        return refuse(codes.forked, "this process was forked after its first vendor call");
    }
    match attachment.enter(function) {
        Entry::Proceed => Ok(attachment),
        Entry::Return(code) => refuse(code, "a fault of the script"),
    }
}
