//! The settings of hardware tests, which `cargo xtask hw-test` passes in environment variables.
//!
//! A hardware test runs on devices or on the double. It fails when a setting is missing: a test that ran on no device has
//! tested nothing.

use crate::attach::ENV_DIR;
use crate::session::Session;
use std::path::PathBuf;

const HOW: &str = "run `cargo xtask hw-test`, with --double where there is no device";

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|error| panic!("{name}: {error}; {HOW}"))
}

/// The devices to use: `CHIPCOMM_DEVICES`, such as `0,1`.
///
/// # Panics
/// Without the setting, or when it is malformed.
pub fn devices() -> Vec<u32> {
    let list = setting("CHIPCOMM_DEVICES");
    let id = |text: &str| match text.parse() {
        Ok(id) => id,
        Err(_) => panic!("CHIPCOMM_DEVICES={list:?}: `{text}` is not a device id; {HOW}"),
    };
    list.split(',').map(id).collect()
}

/// The name of the platform: `CHIPCOMM_PLATFORM`.
///
/// # Panics
/// Without the setting.
pub fn platform() -> String {
    setting("CHIPCOMM_PLATFORM")
}

/// The folder of the kernels, built with the vendor's compiler: `CHIPCOMM_HW_KERNELS`. On the double a test compiles its
/// kernels itself.
///
/// # Panics
/// Without the setting.
pub fn kernel_folder() -> PathBuf {
    setting("CHIPCOMM_HW_KERNELS").into()
}

/// The session of the double; `None` on devices.
///
/// # Panics
/// When the session cannot be opened.
pub fn session() -> Option<Session> {
    let dir = std::env::var_os(ENV_DIR)?;
    Some(Session::create(dir.as_ref()).unwrap_or_else(|error| panic!("{error}")))
}
