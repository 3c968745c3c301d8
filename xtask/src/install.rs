//! `cargo xtask install`: the C libraries, the headers, and what pkg-config and CMake need to find them, under
//! one prefix.
//!
//! Files name each other relative to where they are, so that the tree can be moved and packed as it is.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::cargo::cargo;
use crate::workspace::Workspace;

/// Where to.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder that gets lib/, include/chipcomm/ and share/doc/chipcomm/, such as /usr/local
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
}

/// A C library: its package, what the linker calls it, and what pkg-config and CMake call it.
struct Library {
    package: &'static str,
    link: &'static str,
    name: &'static str,
}

const LIBRARIES: [Library; 2] = [
    Library { package: "comm-sim-c", link: "comm_sim", name: "sim" },
    Library { package: "comm-hccl-c", link: "comm_hccl", name: "hccl" },
];
const HEADERS: &str = "comm-context/include";

/// The command itself.
pub(crate) fn run(ws: &Workspace, args: &Args) -> Result<ExitCode> {
    let packages = LIBRARIES.iter().flat_map(|library| ["--package", library.package]);
    let built = cargo(&ws.root, ["build", "--release"].into_iter().chain(packages)).status();
    ensure!(built.context("cannot start cargo")?.success(), "the C libraries do not build");
    install(ws, &args.prefix)?;
    let prefix = args.prefix.display();
    println!("installed into {prefix}");
    println!("  pkg-config: PKG_CONFIG_PATH={prefix}/lib/pkgconfig pkg-config --cflags --libs chipcomm-sim");
    println!("  CMake: find_package(chipcomm) with -DCMAKE_PREFIX_PATH={prefix}, target chipcomm::sim");
    Ok(ExitCode::SUCCESS)
}

/// Puts what was built under the prefix.
pub(crate) fn install(ws: &Workspace, prefix: &Path) -> Result<()> {
    copy_tree(&ws.root.join(HEADERS), &prefix.join("include/chipcomm"))?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&ws.root.join(licence), &prefix.join("share/doc/chipcomm").join(licence))?;
    }
    for library in &LIBRARIES {
        let file = format!("lib{}.so", library.link);
        copy(&ws.target.join("release").join(&file), &prefix.join("lib").join(&file))?;
        let text = pkg_config(library, &description(ws, library)?, &ws.version);
        write(&prefix.join(format!("lib/pkgconfig/chipcomm-{}.pc", library.name)), &text)?;
    }
    let cmake = prefix.join("lib/cmake/chipcomm");
    write(&cmake.join("chipcommConfig.cmake"), &cmake_targets())?;
    write(&cmake.join("chipcommConfigVersion.cmake"), &cmake_version(&ws.version))
}

fn description(ws: &Workspace, library: &Library) -> Result<String> {
    let text = ws.member(library.package).and_then(|member| member.description.clone());
    text.with_context(|| format!("{} has no description", library.package))
}

fn pkg_config(library: &Library, description: &str, version: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include/chipcomm\n\n\
         Name: chipcomm-{name}\nDescription: {description}\nVersion: {version}\n\
         Cflags: -I${{includedir}}\nLibs: -L${{libdir}} -l{link} -Wl,-rpath,${{libdir}}\n",
        name = library.name,
        link = library.link,
    )
}

/// Imported targets: `chipcomm::headers` for kernels, and one for each library.
fn cmake_targets() -> String {
    let mut text = String::from(
        "get_filename_component(_chipcomm_prefix \"${CMAKE_CURRENT_LIST_DIR}/../../..\" ABSOLUTE)\n\
         if(NOT TARGET chipcomm::headers)\n\
         \x20 add_library(chipcomm::headers INTERFACE IMPORTED)\n\
         \x20 set_target_properties(chipcomm::headers PROPERTIES\n\
         \x20   INTERFACE_INCLUDE_DIRECTORIES \"${_chipcomm_prefix}/include/chipcomm\")\n",
    );
    for Library { link, name, .. } in &LIBRARIES {
        text += &format!(
            "  add_library(chipcomm::{name} SHARED IMPORTED)\n\
             \x20 set_target_properties(chipcomm::{name} PROPERTIES\n\
             \x20   IMPORTED_LOCATION \"${{_chipcomm_prefix}}/lib/lib{link}.so\"\n\
             \x20   IMPORTED_NO_SONAME TRUE\n\
             \x20   INTERFACE_LINK_LIBRARIES chipcomm::headers)\n"
        );
    }
    text + "endif()\n"
}

/// Before 1.0 a minor version may break what a program uses, so only the same one is compatible.
fn cmake_version(version: &str) -> String {
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    format!(
        "set(PACKAGE_VERSION {version})\n\
         if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)\n\
         \x20 set(PACKAGE_VERSION_EXACT TRUE)\n\
         endif()\n\
         if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION\n\
         \x20  AND \"${{PACKAGE_FIND_VERSION_MAJOR}}.${{PACKAGE_FIND_VERSION_MINOR}}\" STREQUAL \"{minor}\")\n\
         \x20 set(PACKAGE_VERSION_COMPATIBLE TRUE)\n\
         endif()\n"
    )
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            copy(&entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Under a name that is gone first: a running program keeps the library that it has loaded.
fn copy(from: &Path, to: &Path) -> Result<()> {
    make_folder_of(to)?;
    let _absent = std::fs::remove_file(to);
    std::fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    make_folder_of(path)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn make_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}
