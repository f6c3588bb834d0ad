//! Runs the real `waypost` on disks of increasing size that fill up, then enlarges each disk.
//!
//! The disk is a small tmpfs that contains only the store; a remount enlarges it. Mounting needs root.
//! Without permission, the rig checks nothing and reports this.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use super::promise::{broken, final_state};
use super::rig::{Stage, Subject, WORKFLOW, Workflow};

/// The mount point in the folder of a play.
pub(super) const MOUNTED: &str = "disk";

/// Enough space for everything.
const ROOM_KIB: u64 = 16 << 10;

/// Exit code if the run cannot be created.
const CANNOT_CREATE: i32 = 73;
/// Exit code if a checkpoint cannot be written.
const CANNOT_WRITE: i32 = 74;

/// How the runs on disks of all sizes ended.
#[derive(Debug, Default)]
pub(super) struct FullTally {
    /// Runs with enough space.
    pub(super) roomy: usize,
    /// Runs that reported a full disk before the first acknowledgement, and after.
    pub(super) refused_at_once: usize,
    pub(super) refused_later: usize,
}

/// A mounted tmpfs, unmounted on drop.
struct Mounted(PathBuf);

impl Mounted {
    /// Mounts a disk of this size; returns `None` without permission.
    fn new(path: &Path, kib: u64) -> anyhow::Result<Option<Self>> {
        fs::create_dir(path)?;
        let size = format!("size={kib}k,mode=0700");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(path).stderr(Stdio::null());
        Ok(command.status().is_ok_and(|status| status.success()).then(|| Self(path.to_owned())))
    }

    fn make_room(&self) -> anyhow::Result<()> {
        let size = format!("remount,size={ROOM_KIB}k");
        if !Command::new("mount").args(["-o", &size]).arg(&self.0).status()?.success() {
            bail!("cannot grow the disk at `{}`", self.0.display());
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazy unmount: a killed process may still be ending.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Runs a workflow on disks of all sizes `kib`; returns `None` if disks cannot be mounted.
///
/// # Errors
/// The first size at which a promise was broken.
pub(super) fn fill(
    subject: &Subject,
    workflow: &Workflow,
    kib: impl Iterator<Item = u64>,
) -> anyhow::Result<Option<FullTally>> {
    let mut tally = FullTally::default();
    for kib in kib {
        let one = one(subject, workflow, kib, &mut tally);
        if one.with_context(|| format!("{}: a disk of {kib} KiB", subject.store.0))?.is_none() {
            return Ok(None);
        }
    }
    Ok(Some(tally))
}

fn one(
    subject: &Subject,
    workflow: &Workflow,
    kib: u64,
    tally: &mut FullTally,
) -> anyhow::Result<Option<()>> {
    let folder = tempfile::Builder::new().prefix("waypost-full-").tempdir()?;
    let Some(mounted) = Mounted::new(&folder.path().join(MOUNTED), kib)? else { return Ok(None) };
    fs::write(folder.path().join(WORKFLOW), &workflow.text)?;
    let mut stage = Stage { subject, folder: folder.path(), starts: Vec::new() };
    let (code, stdout, stderr) = stage.run(&stage.next_command())?;
    // Acknowledged records are readable even on the full disk.
    let full = stage.answer("checkpoints");
    mounted.make_room()?;
    stage.observe(&stdout, Vec::new())?;
    let start = stage.starts.last().context("it was observed")?;
    if !start.acknowledged.is_empty() {
        full.context("what was acknowledged cannot be read while the disk is full")?;
    }
    match (code, start.acknowledged.is_empty()) {
        (Some(0), _) => tally.roomy += 1,
        (Some(CANNOT_CREATE), true) => tally.refused_at_once += 1,
        (Some(CANNOT_WRITE), false) => tally.refused_later += 1,
        (_, is_empty) => {
            let acknowledged = if is_empty { "nothing" } else { "some of it" };
            bail!("it ends with {code:?} after {acknowledged} was acknowledged: {stdout} {stderr}")
        }
    }
    stage.finish()?;
    let mut found = broken(&workflow.steps, &stage.starts);
    found.extend(stage.verify()?);
    let state = final_state(&stage.answer("show")?.context("the run is gone after its end")?);
    if state["status"] != "completed" {
        found.push(format!("it ended with {state}"));
    }
    match found.into_iter().next() {
        Some(broken) => bail!("{broken}"),
        None => Ok(Some(())),
    }
}
