//! Loading: what is refused, always before the first vendor call.

mod support;

use comm_context::abi::DeviceAddr;
use comm_hccl::sys::{AscendCl, FunctionDecl, Hccl, Need};
use comm_hccl::*;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::*;

fn tool(command: &mut Command) {
    let output = command.output().expect("g++ is needed for this test");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A library that exports these functions, each of which aborts when it is called.
fn compile_aborting(dir: &Path, file: &str, functions: &[FunctionDecl]) {
    let source = dir.join("aborting.c");
    let bodies: String =
        functions.iter().map(|f| format!("void {}(void) {{ abort(); }}\n", f.name)).collect();
    fs::write(&source, format!("#include <stdlib.h>\n{bodies}")).unwrap();
    tool(Command::new("gcc").args(["-fPIC", "-c", "-o"]).arg(dir.join(file).with_extension("o")).arg(source));
    link(dir, file, None);
}

/// Links the library again, with one of its functions hidden.
fn link(dir: &Path, file: &str, hidden: Option<&str>) {
    let map = dir.join("map");
    let local = hidden.map_or(String::new(), |name| format!("local: {name};"));
    fs::write(&map, format!("{{ global: *; {local} }};")).unwrap();
    let mut script = std::ffi::OsString::from("-Wl,--version-script=");
    script.push(&map);
    let object = dir.join(file).with_extension("o");
    tool(Command::new("gcc").args(["-shared", "-o"]).arg(dir.join(file)).arg(script).arg(object));
}

fn private_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

// F09, HC-2
#[test]
fn f09_each_required_symbol_missing_in_turn_is_refused_by_name() {
    let dir = private_dir();
    compile_aborting(dir.path(), AscendCl::FILE, AscendCl::FUNCTIONS);
    compile_aborting(dir.path(), Hccl::FILE, Hccl::FUNCTIONS);
    let mut tried = 0;
    for (file, functions) in [(AscendCl::FILE, AscendCl::FUNCTIONS), (Hccl::FILE, Hccl::FUNCTIONS)] {
        for function in functions.iter().filter(|f| f.need == Need::Required) {
            // Each in a new directory, or the loader would return the library that is open already.
            let variant = dir.path().join(function.name);
            fs::create_dir(&variant).unwrap();
            for other in [AscendCl::FILE, Hccl::FILE] {
                fs::copy(dir.path().join(other).with_extension("o"), variant.join(other).with_extension("o"))
                    .unwrap();
                link(&variant, other, (other == file).then_some(function.name));
            }
            // A vendor call would abort this process.
            let error = Vendor::load(Some(&variant)).expect_err(function.name);
            let LoadError::MissingSymbols { path, symbols } = &error else { panic!("{error}") };
            assert_eq!((path, &symbols[..]), (&variant.join(file), &[function.name][..]));
            assert_eq!(
                error.to_string(),
                format!(
                    "{} lacks {}: it is too old, or not the vendor's; install a newer CANN",
                    path.display(),
                    function.name
                )
            );
            tried += 1;
        }
    }
    assert_eq!(tried, 27, "required functions");
}

/// One of the double's libraries, and where the names of its functions are in the file.
struct DoubleLibrary {
    file: &'static str,
    bytes: Vec<u8>,
    places: HashMap<&'static str, Vec<usize>>,
}

impl DoubleLibrary {
    fn read(file: &'static str, functions: &'static [FunctionDecl]) -> Self {
        let bytes = fs::read(cann_sim::library_dir().join(file)).unwrap();
        let names: HashMap<&[u8], &str> = functions.iter().map(|f| (f.name.as_bytes(), f.name)).collect();
        let mut places: HashMap<_, Vec<_>> = HashMap::new();
        let mut at = 0;
        // The name of a symbol is between two NULs.
        for word in bytes.split(|&b| b == 0) {
            if let Some(name) = names.get(word) {
                places.entry(*name).or_default().push(at);
            }
            at += word.len() + 1;
        }
        assert_eq!(places.len(), functions.len(), "{file} exports every declared function");
        Self { file, bytes, places }
    }

    /// Writes the library with one name changed, so that it is not found.
    fn write_without(&self, dir: &Path, function: &str) {
        let mut bytes = self.bytes.clone();
        self.places.get(function).into_iter().flatten().for_each(|&at| bytes[at] = b'_');
        fs::write(dir.join(self.file), bytes).unwrap();
    }
}

#[test]
fn a_missing_optional_symbol_disables_only_what_needs_it() {
    let libraries = [(AscendCl::FILE, AscendCl::FUNCTIONS), (Hccl::FILE, Hccl::FUNCTIONS)]
        .map(|(f, t)| DoubleLibrary::read(f, t));
    let functions = AscendCl::FUNCTIONS.iter().chain(Hccl::FUNCTIONS);
    let optional: Vec<_> = functions.filter(|f| f.need == Need::Optional).map(|f| f.name).collect();
    let mut refused = BTreeSet::new();
    for function in &optional {
        let (dir, double) = (private_dir(), double(""));
        libraries.iter().for_each(|library| library.write_without(dir.path(), function));
        let mut command = rank_command(&double, "part_without_optional", 0);
        command.env(comm_hccl::ENV_LIB_DIR, dir.path()).env("CHIPCOMM_TEST_WITHOUT", function);
        let output = finish(command.spawn().unwrap());
        assert_success(&output);
        if text(&output).contains("refused: ") {
            refused.insert(*function);
        }
        let report = double.session.report().unwrap();
        assert!(report.processes.len() == 1 && report.is_clean(), "{function}: {report}");
    }
    // These have a substitute, or this crate does not call them.
    let dispensable = [
        "HcclAllGather",
        "HcclAllGatherV",
        "HcclAllReduce",
        "HcclAlltoAll",
        "HcclAlltoAllV",
        "HcclBroadcast",
        "HcclRecv",
        "HcclReduce",
        "HcclReduceScatter",
        "HcclReduceScatterV",
        "HcclScatter",
        "HcclSend",
        // For graphs; see hw_runtime of `chip-runtime`.
        "aclrtCreateEvent",
        "aclrtDestroyEvent",
        "aclrtDeviceGetBareTgid",
        "aclrtDevicePeerAccessStatus",
        "aclrtGetPhyDevIdByLogicDevId",
        "aclrtGetVersion",
        // Opening a key takes a second process; see proc_faults.
        "aclrtIpcMemImportByKey",
        "aclrtLaunchKernel",
        // Launching takes a kernel; see proc_faults.
        "aclrtLaunchKernelWithHostArgs",
        // For collectives; see hw_collectives of `collectives`.
        "aclrtPointerGetAttributes",
        "aclrtQueryEventStatus",
        "aclrtRecordEvent",
        "aclrtStreamWaitEvent",
    ];
    let not_refused: Vec<_> =
        optional.iter().copied().collect::<BTreeSet<_>>().difference(&refused).copied().collect();
    assert_eq!(not_refused, dispensable);
}

#[test]
#[ignore = "a part of a_missing_optional_symbol_disables_only_what_needs_it"]
fn part_without_optional() {
    if my_rank().is_none() {
        return;
    }
    let missing = std::env::var("CHIPCOMM_TEST_WITHOUT").unwrap();
    let (runtime, device) = open_device(0);
    let soon = Instant::now() + Duration::from_secs(60);
    let try_mode = |mode| {
        let window = LocalWindow::create(&device, mode, 1)?;
        window.allow(&[device.vendor_pid()?])?;
        if mode != ShareMode::IpcKey {
            PeerWindow::open(&device, window.ticket(), soon)?.release()?;
        }
        window.release()
    };
    let peer = device.enable_peer(VisibleDevice(1), PhysicalDevice(1), soon).map(drop);
    let results = ShareMode::ALL.map(try_mode);
    let add = || {
        let (stream, words) = (Stream::create(&device)?, DeviceMemory::allocate(&device, 8)?);
        stream.add_word(words.addr(), DeviceAddr(words.addr().0 + 4))?;
        words.release()?;
        stream.release()
    };
    for error in results.iter().chain([&peer, &add()]).filter_map(|r| r.as_ref().err()) {
        println!("\nrefused: {error}");
        assert!(error.is_unsupported(), "{error}");
        let text = format!("the installed CANN has no {missing}; a newer one is needed for this");
        assert_eq!(error.to_string(), text);
    }
    assert!(results.iter().any(Result::is_ok), "some mode is left");
    // Everything that was made could be released.
    device.close().unwrap();
    runtime.finalise().unwrap();
}

#[test]
fn hccl_is_found_in_libhcomm_where_libhccl_is_missing_or_thin() {
    for thin in [false, true] {
        let (dir, double) = (private_dir(), double(""));
        let library = |name: &str| cann_sim::library_dir().join(name);
        fs::copy(library(AscendCl::FILE), dir.path().join(AscendCl::FILE)).unwrap();
        fs::copy(library(Hccl::FILE), dir.path().join("libhcomm.so")).unwrap();
        if thin {
            compile_aborting(dir.path(), Hccl::FILE, &Hccl::FUNCTIONS[..1]);
        }
        let mut command = rank_command(&double, "part_hcomm", 0);
        let output = finish(command.env(ENV_LIB_DIR, dir.path()).spawn().unwrap());
        assert_success(&output);
        assert!(text(&output).contains("libhcomm.so"), "{}", text(&output));
    }
}

#[test]
#[ignore = "a part of hccl_is_found_in_libhcomm_where_libhccl_is_missing_or_thin"]
fn part_hcomm() {
    if my_rank().is_none() {
        return;
    }
    let vendor = Vendor::load(None).unwrap();
    println!("{}", vendor.hccl_path().display());
    let (runtime, device) = open_device(0);
    let group = Group::join(&device, &RootInfo::open(&device).unwrap(), 1, 0).unwrap();
    group.release().unwrap();
    device.close().unwrap();
    runtime.finalise().unwrap();
}

#[test]
fn every_place_of_both_libraries_of_hccl_is_named() {
    let dir = private_dir();
    compile_aborting(dir.path(), AscendCl::FILE, AscendCl::FUNCTIONS);
    let error = Vendor::load(Some(dir.path())).expect_err("no HCCL").to_string();
    for part in ["libhccl.so was not found", "/libhccl.so (", "/libhcomm.so ("] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
}

#[test]
fn a_directory_without_libraries_is_named_with_what_was_tried() {
    let dir = private_dir();
    let error = Vendor::load(Some(dir.path())).expect_err("an empty directory");
    let LoadError::NotFound { library, tried } = &error else { panic!("{error}") };
    assert_eq!((*library, tried.len()), (AscendCl::FILE, 1));
    assert_eq!(tried[0].place(), dir.path().join(AscendCl::FILE));
    assert_eq!(
        error.to_string(),
        format!(
            "{} was not found; tried {}; install CANN and source its set_env.sh, or set CHIPCOMM_CANN_LIB_DIR",
            AscendCl::FILE,
            tried[0]
        )
    );
}

#[test]
fn a_file_that_is_not_a_library_is_named_with_the_loaders_error() {
    let dir = private_dir();
    fs::write(dir.path().join(AscendCl::FILE), "text").unwrap();
    let error = Vendor::load(Some(dir.path())).expect_err("a text file");
    let LoadError::NotFound { tried, .. } = &error else { panic!("{error}") };
    let error = tried[0].to_string();
    assert!(error.contains("file too short") || error.contains("ELF"), "{error}");
}

#[test]
fn a_library_that_everyone_can_write_is_refused() {
    let dir = private_dir();
    let library = dir.path().join(AscendCl::FILE);
    fs::write(&library, "text").unwrap();
    for writable in [library.as_path(), dir.path()] {
        let before = writable.metadata().unwrap().permissions();
        fs::set_permissions(writable, Permissions::from_mode(0o777)).unwrap();
        let error = Vendor::load(Some(dir.path())).expect_err("a writable library");
        fs::set_permissions(writable, before).unwrap();
        let LoadError::WorldWritable { library: named, writable: cause } = &error else { panic!("{error}") };
        assert_eq!((named.as_path(), cause.as_path()), (library.as_path(), writable));
        assert_eq!(
            error.to_string(),
            format!(
                "{} is not loaded because every user can write {}; remove that permission (chmod o-w)",
                library.display(),
                writable.display()
            )
        );
    }
}

#[test]
fn a_link_to_a_library_in_an_open_directory_is_refused() {
    let (named, open) = (private_dir(), private_dir());
    fs::write(open.path().join("real.so"), "text").unwrap();
    fs::set_permissions(open.path(), Permissions::from_mode(0o1777)).unwrap();
    std::os::unix::fs::symlink(open.path().join("real.so"), named.path().join(AscendCl::FILE)).unwrap();
    let error = Vendor::load(Some(named.path())).expect_err("a link into an open directory");
    assert!(matches!(error, LoadError::WorldWritable { .. }), "{error}");
}

#[test]
fn a_version_that_is_too_old_is_refused() {
    let double = double("acl-version = 1.11.4");
    assert_success(&run_part(&double, "part_too_old", &[]));
}

#[test]
#[ignore = "a part of a_version_that_is_too_old_is_refused"]
fn part_too_old() {
    if my_rank().is_none() {
        return;
    }
    let error = Vendor::load(None).expect_err("interface 1.11");
    let path = cann_sim::library_dir().join(AscendCl::FILE);
    assert_eq!(
        error.to_string(),
        format!(
            "{} has ACL interface 1.11.4, at least 1.12.0 is needed; install a newer CANN",
            path.display()
        )
    );
}

#[test]
fn the_libraries_load_once_and_report_where_they_are() {
    let double = double("");
    assert_success(&run_part(&double, "part_loads_once", &[]));
}

#[test]
#[ignore = "a part of the_libraries_load_once_and_report_where_they_are"]
fn part_loads_once() {
    if my_rank().is_none() {
        return;
    }
    let vendor = Vendor::load(None).unwrap();
    assert_eq!(vendor.acl_path(), cann_sim::library_dir().join(AscendCl::FILE));
    assert_eq!(vendor.hccl_path(), cann_sim::library_dir().join(Hccl::FILE));
    assert_eq!(vendor.version().unwrap().to_string(), "1.17.0");
    let shown = vendor.to_string();
    assert!(shown.starts_with("ACL interface 1.17.0 (/") && shown.contains(Hccl::FILE), "{shown}");
    assert!(std::ptr::eq(vendor, Vendor::load(None).unwrap()));
    let error = Vendor::load(Some(Path::new("/elsewhere"))).expect_err("another directory");
    assert_eq!(
        error.to_string(),
        format!(
            "the vendor libraries are already loaded from {}, and cannot be loaded again from /elsewhere; start a new process",
            vendor.acl_path().display()
        )
    );
}
