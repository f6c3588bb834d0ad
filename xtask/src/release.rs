//! `cargo xtask package` and `cargo xtask docs`: what a release consists of, and whether it can be made.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::{output, repo};

/// Licences of dependencies that agree with "MIT OR Apache-2.0", by their SPDX names.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
    /// The registries to publish to; empty for an internal crate.
    publish: Option<Vec<String>>,
    source: Option<String>,
}

/// Makes the archive of every public crate, and checks the licences of all dependencies.
///
/// With `verify`, each archive is built too; `cargo xtask test` has built the same sources with all dependencies
/// of the workspace, but not from the files of the archive.
///
/// # Errors
/// If an archive cannot be made or built, or a licence is unknown.
pub(crate) fn package(verify: bool) -> anyhow::Result<()> {
    let output = repo::cargo(&["metadata", "--format-version", "1", "--locked"])
        .output()
        .context("cannot start `cargo metadata`")?;
    if !output.status.success() {
        bail!("`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cannot read `cargo metadata`")?;
    let unknown: BTreeSet<String> = metadata.packages.iter().filter_map(unknown_licence).collect();
    if !unknown.is_empty() {
        bail!("unknown licences: {}", unknown.into_iter().collect::<Vec<_>>().join(", "));
    }
    output::note(format!("the licences of {} crates are known", metadata.packages.len()));

    let mut command = repo::cargo(&["package", "--workspace", "--allow-dirty", "--quiet"]);
    if !verify {
        command.arg("--no-verify");
    }
    let internal = |package: &&Package| package.source.is_none() && package.publish.as_deref() == Some(&[]);
    for package in metadata.packages.iter().filter(internal) {
        command.args(["--exclude", &package.name]);
    }
    repo::run(&mut command)
}

/// Checks that the kinds of evidence can be left out: all, and all but one.
///
/// # Errors
/// If a combination has an error or a warning, or a kind that was left out is accepted.
pub(crate) fn features() -> anyhow::Result<()> {
    for kept in ["", "container", "http", "postgres"] {
        let mut check = repo::cargo(&["clippy", "-p", "waypost-evidence", "--no-default-features"]);
        repo::run(check.args(["--features", kept, "--", "-D", "warnings"]))?;
    }
    repo::run(&mut repo::cargo(&["check", "-p", "waypost-workflow", "--no-default-features"]))?;
    repo::run(&mut repo::cargo(&["test", "-p", "waypost-evidence", "--lib", "--no-default-features"]))
}

/// Builds the pages of the crates, and the site of `docs` if the program `mdbook` exists.
///
/// # Errors
/// If a page cannot be built.
pub(crate) fn docs() -> anyhow::Result<()> {
    let mut rustdoc = repo::cargo(&["doc", "--workspace", "--no-deps"]);
    repo::run(rustdoc.env("RUSTDOCFLAGS", "-D warnings"))?;
    let exists = Command::new("mdbook").arg("--version").output().is_ok();
    if !exists {
        output::note("no program `mdbook`: `cargo xtask tidy` has checked the links of the site");
        return Ok(());
    }
    repo::run(Command::new("mdbook").args(["build", "docs"]).current_dir(repo::root()))
}

/// Returns the name and licence of a package without a known licence.
fn unknown_licence(package: &Package) -> Option<String> {
    let licence = package.license.as_deref().unwrap_or("none");
    (!is_known(licence)).then(|| format!("{} ({licence})", package.name))
}

/// Returns whether every part of a licence expression has a known alternative.
fn is_known(expression: &str) -> bool {
    expression.split(" AND ").all(|part| {
        let part = part.trim_matches(['(', ')']).replace('/', " OR ");
        part.split(" OR ").any(|name| LICENCES.contains(&name.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::is_known;

    #[test]
    fn a_licence_needs_a_known_alternative_in_each_part() {
        for known in ["MIT", "MIT/Apache-2.0", "(GPL-3.0 OR MIT) AND Unicode-3.0", "Apache-2.0 AND ISC"] {
            assert!(is_known(known), "{known}");
        }
        for unknown in ["none", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND AGPL-3.0"] {
            assert!(!is_known(unknown), "{unknown}");
        }
    }
}
