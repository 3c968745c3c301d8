//! The settings of hardware tests, which `cargo xtask hw-test` passes in environment variables.
//!
//! A hardware test runs on devices or on the double. It fails when a setting is missing: a test that ran on no device has
//! tested nothing.

use crate::attach::ENV_DIR;
use crate::session::Session;
use std::path::{Path, PathBuf};

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

/// The devices to use, at least `count` of them.
///
/// # Panics
/// With fewer: a test of a group that has one member has tested nothing. Otherwise as [`devices`].
pub fn at_least(count: usize) -> Vec<u32> {
    let devices = devices();
    assert!(devices.len() >= count, "this test needs {count} devices, and hw-test was given {devices:?}");
    devices
}

/// The name of the platform: `CHIPCOMM_PLATFORM`.
///
/// # Panics
/// Without the setting.
pub fn platform() -> String {
    setting("CHIPCOMM_PLATFORM")
}

/// A kernel of `tests/hw_kernels` of the test's crate, by name, which hw-test compiled into the folder
/// `CHIPCOMM_HW_KERNELS`: with the vendor's compiler, or for the double.
///
/// # Panics
/// Without the setting, or when there is no such kernel.
pub fn kernel(name: &str) -> PathBuf {
    let object = Path::new(&setting("CHIPCOMM_HW_KERNELS")).join(format!("{name}.o"));
    assert!(object.is_file(), "there is no {}; {HOW}", object.display());
    object
}

/// Writes the description that the vendor's loader needs beside a kernel that was built for the double.
///
/// # Panics
/// When it cannot be written.
pub fn describe_kernel(object: &Path) {
    let json = r#"{"magic": "RT_DEV_BINARY_MAGIC_ELF_AIVEC"}"#;
    let written = std::fs::write(object.with_extension("json"), json);
    written.unwrap_or_else(|error| panic!("{}: {error}", object.display()));
}

/// The session of the double; `None` on devices.
///
/// # Panics
/// When the session cannot be opened.
pub fn session() -> Option<Session> {
    let dir = std::env::var_os(ENV_DIR)?;
    Some(Session::create(dir.as_ref()).unwrap_or_else(|error| panic!("{error}")))
}
