//! The location of the repository, and the start of its tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::output;

/// Returns the folder of the workspace that this xtask was built from.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Returns cargo's target folder: `CARGO_TARGET_DIR` if set, else `target` of the workspace.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Returns the path for restarting this program, valid while it runs.
///
/// On Linux, the path refers to the running file even after cargo replaces it, as a `cargo test` may do.
///
/// # Errors
/// If the system does not report the path of this program.
pub(crate) fn this_program() -> anyhow::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok(format!("/proc/{}/exe", std::process::id()).into());
    }
    std::env::current_exe().context("cannot tell which program this is")
}

/// Returns a cargo command in the workspace, with the cargo that runs this xtask.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Prints and runs `command` with inherited output.
///
/// # Errors
/// If the command cannot be started or does not exit with 0; the message shows the command.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = shown(command);
    output::note(format!("+ {shown}"));
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// Formats a command as typed in a shell, without the folder of the program.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}
