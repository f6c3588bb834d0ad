//! Where the repository is, and how its tools are started.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::output;

/// The folder of the workspace this xtask was built from.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}

/// The folder cargo builds into: `CARGO_TARGET_DIR` if set, else `target` of the workspace.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// How this very program is started again, for as long as it runs.
///
/// On Linux that is the file it was started from even after cargo has built another one in its place, which a
/// `cargo test` in the midst of it may do; elsewhere it is its path.
///
/// # Errors
/// When the system does not say which program this is.
pub(crate) fn this_program() -> anyhow::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok(format!("/proc/{}/exe", std::process::id()).into());
    }
    std::env::current_exe().context("cannot tell which program this is")
}

/// A cargo command in the workspace, by the cargo that runs this xtask.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs `command` with the terminal's own output, after saying what it is.
///
/// # Errors
/// When it cannot be started or does not end with 0; the message shows the command.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = shown(command);
    output::note(format!("+ {shown}"));
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// The command as a person would type it; a program's folder is left out.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}
