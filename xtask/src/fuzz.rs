//! `cargo xtask fuzz`: random bytes for everything that reads bytes from outside.

use std::fs;
use std::process::Command;

use anyhow::Context as _;

use crate::repo;

/// Runs each target of the folder `fuzz` for `seconds`, with the program `cargo-fuzz`. Each begins with the inputs in
/// `fuzz/seeds`, and adds what it finds to `fuzz/corpus`.
///
/// # Errors
/// If `cargo-fuzz` is missing, a target cannot be built, or a target found a defect: the output has the input.
pub(crate) fn run(seconds: u32) -> anyhow::Result<()> {
    let folder = repo::root().join("fuzz");
    let sources = folder.join("src/bin");
    let entries = fs::read_dir(&sources).with_context(|| format!("cannot read {}", sources.display()))?;
    let mut targets: Vec<_> =
        entries.filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned)).collect();
    targets.sort();
    for target in targets {
        let (corpus, seeds) = (format!("corpus/{target}"), format!("seeds/{target}"));
        fs::create_dir_all(folder.join(&corpus)).with_context(|| format!("cannot create {corpus}"))?;
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["fuzz", "run", "--fuzz-dir", ".", &target, &corpus, &seeds, "--"]);
        command.arg(format!("-max_total_time={seconds}"));
        // A scoped thread frees its handle after the end of the scope: the search for leaks then finds this memory.
        command.arg("-detect_leaks=0");
        // The stable compiler then accepts the options of `cargo-fuzz`.
        repo::run(command.env("RUSTC_BOOTSTRAP", "1").current_dir(&folder))?;
    }
    Ok(())
}
