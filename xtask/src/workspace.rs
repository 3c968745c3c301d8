//! The workspace as `cargo metadata` describes it, reduced to what the commands ask for.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The members and where they are.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Where cargo puts what it builds.
    pub(crate) target: PathBuf,
    /// In the order in which the root manifest lists them.
    pub(crate) members: Vec<Member>,
    /// The version that all members share.
    pub(crate) version: String,
}

/// One crate of the workspace.
#[derive(Debug, Default)]
pub(crate) struct Member {
    /// What code and tables call it.
    pub(crate) name: String,
    /// What cargo calls it: `chipcomm-NAME` where the registry has another crate of its name.
    pub(crate) package: String,
    pub(crate) description: Option<String>,
    /// Whether others take it as a package.
    pub(crate) published: bool,
    /// Its folder, relative to the root, with `/` between the parts.
    pub(crate) dir: String,
    /// Whether a bare `cargo run` or `cargo test` at the root selects it.
    pub(crate) is_default: bool,
    pub(crate) default_run: Option<String>,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
    pub(crate) features: std::collections::BTreeMap<String, Vec<String>>,
}

/// One edge, as the member's manifest declares it.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// What the crate that has the edge calls it, where that differs.
    pub(crate) rename: Option<String>,
    /// `None` for a normal dependency, else `dev` or `build`.
    pub(crate) kind: Option<String>,
    #[serde(default)]
    pub(crate) features: Vec<String>,
}

/// One library, program, test or example.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    #[serde(default, rename = "required-features")]
    pub(crate) required_features: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    workspace_default_members: Vec<String>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    description: Option<String>,
    /// The registries it may go to: none of them, or any where it is absent.
    publish: Option<Vec<String>>,
    manifest_path: PathBuf,
    default_run: Option<String>,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
    features: std::collections::BTreeMap<String, Vec<String>>,
}

impl Workspace {
    /// Asks cargo about the workspace around the current folder.
    pub(crate) fn load() -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let out = Command::new(cargo)
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .output()
            .context("cannot start `cargo metadata`")?;
        ensure!(out.status.success(), "`cargo metadata` failed:\n{}", String::from_utf8_lossy(&out.stderr));
        Self::parse(&out.stdout)
    }

    fn parse(json: &[u8]) -> Result<Self> {
        let mut metadata: Metadata =
            serde_json::from_slice(json).context("`cargo metadata` printed something unexpected")?;
        let root = metadata.workspace_root;
        let mut members = Vec::new();
        let version = metadata.packages.first().map(|package| package.version.clone()).unwrap_or_default();
        for id in &metadata.workspace_members {
            let at = metadata.packages.iter().position(|package| package.id == *id);
            let mut package =
                metadata.packages.swap_remove(at.context("a member is missing from its own list")?);
            for edge in &mut package.dependencies {
                edge.name = edge.rename.take().unwrap_or_else(|| std::mem::take(&mut edge.name));
            }
            members.push(Member {
                is_default: metadata.workspace_default_members.contains(id),
                dir: relative(&root, package.manifest_path.parent().unwrap_or(&root)),
                name: plain_name(&package),
                package: package.name,
                description: package.description,
                published: package.publish.is_none(),
                default_run: package.default_run,
                dependencies: package.dependencies,
                targets: package.targets,
                features: package.features,
            });
        }
        Ok(Self { root, target: metadata.target_directory, members, version })
    }

    /// What cargo calls the crate of this name.
    pub(crate) fn package<'a>(&'a self, name: &'a str) -> &'a str {
        self.member(name).map_or(name, |member| &member.package)
    }

    /// The member of this name.
    pub(crate) fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// The outermost member whose folder holds this one's, or the member itself: the crate that the table
    /// lists.
    pub(crate) fn owner<'a>(&'a self, member: &'a Member) -> &'a Member {
        let holds = |outer: &&Member| member.dir.starts_with(&format!("{}/", outer.dir));
        self.members.iter().filter(holds).min_by_key(|outer| outer.dir.len()).unwrap_or(member)
    }

    /// Members that a reader sees at the top level, in the order of the root manifest.
    pub(crate) fn top_level(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| self.owner(member).name == member.name)
    }
}

/// A library's own name, where the package's is that with `chipcomm-` in front.
fn plain_name(package: &Package) -> String {
    let library = package.targets.iter().find(|target| target.kind.iter().any(|kind| kind == "lib"));
    let name = library.map(|target| target.name.replace('_', "-"));
    name.filter(|name| package.name == format!("chipcomm-{name}")).unwrap_or_else(|| package.name.clone())
}

impl Member {
    /// Names of the targets of one kind (`test`, `example`, `bin`) that start with `prefix`.
    pub(crate) fn targets_named<'a>(
        &'a self,
        kind: &'a str,
        prefix: &'a str,
    ) -> impl Iterator<Item = &'a str> + 'a {
        let of_kind = move |target: &&Target| target.kind.iter().any(|k| k == kind);
        self.targets.iter().filter(of_kind).map(|t| t.name.as_str()).filter(move |n| n.starts_with(prefix))
    }

    /// Whether other crates can depend on it.
    pub(crate) fn is_library(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind.ends_with("lib")))
    }
}

/// `path` as seen from `root`, with `/` between the parts; unchanged where it lies outside.
pub(crate) fn relative(root: &Path, path: &Path) -> String {
    let parts = path.strip_prefix(root).unwrap_or(path).components();
    parts.map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_the_order_of_the_manifest_and_know_their_folder() {
        let json = br#"{"workspace_root": "/ws", "target_directory": "/ws/target", "workspace_members": ["b", "a"],
            "workspace_default_members": ["a"], "packages": [
              {"id": "a", "name": "a", "version": "0.1.0", "publish": [], "manifest_path": "/ws/b/a/Cargo.toml", "default_run": "go", "features": {},
               "dependencies": [], "targets": [{"name": "loom_x", "kind": ["test"]}]},
              {"id": "b", "name": "b", "version": "0.1.0", "publish": null, "manifest_path": "/ws/b/Cargo.toml", "default_run": null, "features": {},
               "dependencies": [{"name": "a", "kind": "dev", "features": ["f"]}],
               "targets": [{"name": "b", "kind": ["cdylib"], "required-features": ["f"]}]}]}"#;
        let ws = Workspace::parse(json).unwrap();
        assert_eq!(ws.members.iter().map(|m| m.dir.as_str()).collect::<Vec<_>>(), ["b", "b/a"]);
        assert!(ws.members[0].is_library() && !ws.members[0].is_default);
        assert_eq!(ws.members[1].targets_named("test", "loom_").collect::<Vec<_>>(), ["loom_x"]);
        assert_eq!(ws.top_level().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(ws.owner(&ws.members[1]).name, "b");
        assert!(ws.members[0].published && !ws.members[1].published);
    }
}
