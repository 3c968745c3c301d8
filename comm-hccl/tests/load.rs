//! Loading: what is refused, and that it is refused before the first vendor call.

mod support;

use comm_hccl::sys::{AscendCl, FunctionDecl, Hccl, Need};
use comm_hccl::{LoadError, Vendor};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
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
            // A fresh place for each, or the loader would give the library that it has open from before.
            let variant = dir.path().join(function.name);
            fs::create_dir(&variant).unwrap();
            for other in [AscendCl::FILE, Hccl::FILE] {
                fs::copy(dir.path().join(other).with_extension("o"), variant.join(other).with_extension("o"))
                    .unwrap();
                link(&variant, other, (other == file).then_some(function.name));
            }
            // A vendor call would abort this process.
            let error = Vendor::load(Some(&variant)).expect_err(function.name);
            let expected =
                LoadError::MissingSymbols { path: variant.join(file), symbols: vec![function.name] };
            assert_eq!(error, expected);
            assert!(error.to_string().contains(function.name));
            tried += 1;
        }
    }
    assert_eq!(tried, 28, "required functions");
}

#[test]
fn a_directory_without_libraries_is_named_with_what_was_tried() {
    let dir = private_dir();
    let error = Vendor::load(Some(dir.path())).expect_err("an empty directory");
    let LoadError::NotFound { library, tried } = &error else { panic!("{error}") };
    assert_eq!((*library, tried.len()), (AscendCl::FILE, 1));
    assert_eq!(tried[0].place, dir.path().join(AscendCl::FILE));
    assert!(error.to_string().contains("CHIPCOMM_CANN_LIB_DIR"));
}

#[test]
fn a_file_that_is_no_library_is_named_with_the_loaders_words() {
    let dir = private_dir();
    fs::write(dir.path().join(AscendCl::FILE), "text").unwrap();
    let error = Vendor::load(Some(dir.path())).expect_err("a text file");
    let LoadError::NotFound { tried, .. } = &error else { panic!("{error}") };
    assert!(tried[0].why.contains("file too short") || tried[0].why.contains("ELF"), "{}", tried[0].why);
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
        assert_eq!(
            error,
            LoadError::WorldWritable { library: library.clone(), writable: writable.to_owned() }
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
    assert!(matches!(error, LoadError::TooOld { found, .. } if found.minor == 11), "{error}");
    assert!(error.to_string().contains("1.11.4") && error.to_string().contains("1.12.0"), "{error}");
}

#[test]
fn what_is_loaded_says_where_it_came_from_and_loads_once() {
    let double = double("");
    assert_success(&run_part(&double, "part_loads_once", &[]));
}

#[test]
#[ignore = "a part of what_is_loaded_says_where_it_came_from_and_loads_once"]
fn part_loads_once() {
    if my_rank().is_none() {
        return;
    }
    let vendor = Vendor::load(None).unwrap();
    assert_eq!(vendor.acl_path(), cann_sim::library_dir().join(AscendCl::FILE));
    assert_eq!(vendor.hccl_path(), cann_sim::library_dir().join(Hccl::FILE));
    assert_eq!(vendor.version().unwrap().to_string(), "1.17.0");
    let told = vendor.to_string();
    assert!(told.starts_with("ACL interface 1.17.0 (/") && told.contains(Hccl::FILE), "{told}");
    assert!(std::ptr::eq(vendor, Vendor::load(None).unwrap()));
    let error = Vendor::load(Some(Path::new("/elsewhere"))).expect_err("another directory");
    assert!(matches!(error, LoadError::LoadedElsewhere { .. }), "{error}");
}
