//! Evidence: checks now whether the claimed results of a step exist.
//!
//! A [`Pack`](crate::record::Pack) has claims and a rule over them. A [`Probe`] checks claims of one kind.
//! The [`Verifier`] calls the probes, in parallel and within limits, and returns the pack with verdicts. Only
//! `ok` is trusted. Never `ok` are: an empty pack, a missing expectation, a kind without a probe, a path that
//! leaves its folder, and an impossible check.
//!
//! This crate has three probes: `artifact_exists`, `file_sha256` and `command_exit`. Further probes implement
//! [`Probe`] and are added by [`Verifier::with_probe`].
//!
//! ```text
//!   claims --> cheap ones first, so many at once --> probe --> ok | failed
//!                                                      |  unknown: again after a pause, while there is time
//!                                                      +------------------------------------------------->  unknown
//! ```
//!
//! ```
//! use waypost::evidence::{Site, Verifier};
//! use waypost::record::{Claim, Pack, Verdict};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! std::fs::write(folder.join("report.md"), "# All is well")?;
//! let pack = Pack::all([Claim::file("report.md"), Claim::unchanged("report.md")]);
//! let (verifier, site) = (Verifier::new(), Site::beneath(folder));
//!
//! let committed = verifier.commit(&pack, &site).await;
//! assert_eq!(committed.verdict(), Verdict::Ok);
//!
//! std::fs::write(folder.join("report.md"), "# All is lost")?;
//! let later = verifier.verify(&committed, &site).await;
//! assert_eq!((later.verdict(), later.summary().ok), (Verdict::Failed, 1));
//! # Ok(())
//! # }
//! ```
//!
//! This module does not know runs or stores. Plan, engine and recorder decide when to check.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde_json::Value;

use crate::record::{Claim, Verdict};
use crate::system::lock::host_name;

mod blocking;
mod exit;
mod expect;
mod file_guard;
mod files;
mod pack;
mod pattern;
mod safe_open;
mod superseded;
mod verifier;
mod walk;

pub use exit::ExitProbe;
pub use expect::{InvalidExpectation, check_size, parse_size};
pub use file_guard::{FileGuard, find_file_guard};
pub use files::{
    ExistsProbe, Sha256Probe, check_mode, find_all, find_folder, find_names, modified, read_file,
};
pub use pack::{CLAIMS_MAX, InvalidPack, UNMET_MAX, VerdictSummary, shown_value};
pub(crate) use pattern::resolved;
pub use pattern::{check_pattern, is_pattern, literal_path, named_by, reaches};
pub(crate) use superseded::{ClaimKey, Newest};
pub use verifier::{Limits, Verifier};

/// Recorded kind of claims that a file or folder exists.
pub const ARTIFACT_EXISTS: &str = "artifact_exists";
/// Recorded kind of claims about the digest of a file.
pub const FILE_SHA256: &str = "file_sha256";
/// Recorded kind of claims about the recorded exit code of a step.
pub const COMMAND_EXIT: &str = "command_exit";

/// Checks claims of one kind.
///
/// # Contract
/// - A check changes nothing, and runs nothing that the claim does not name.
/// - A claim with a missing or unknown expectation is never `ok`: [`Finding::failed`] if it can never hold,
///   [`Finding::unknown`] if another version of the probe might know the expectation.
/// - `Err` is a finding that ends a check early, by `?`. The verifier treats it as the same finding in `Ok`.
/// - If the world differs from the expectation, the finding is [`Finding::differs`] or [`Finding::absent`],
///   in no other case. Only for these two findings the negated claim holds.
/// - A probe reads [`Claim::terms`] only as far as a check needs: the [`Verifier`] applies them.
/// - A check may be dropped at any time, and must then end soon.
/// - A panic in a check, pin or glance makes the claim `unknown`, and affects neither the caller nor other
///   checks.
/// - A check never blocks its thread: no limit could end it, and other checks and steps would wait. Blocking
///   work, such as reading a file, belongs into [`tokio::task::spawn_blocking`].
/// - A call is a single attempt: the [`Verifier`] sets the time limit and retries.
#[async_trait]
pub trait Probe: Debug + Send + Sync {
    /// Returns the properties that the claims of this probe share.
    fn kind(&self) -> ProbeKind;

    /// Returns, in order, the results of checks without a read, where [terms](crate::record::Terms::fast) and
    /// [stamp](Claim::stamp) of a claim allow it and the stamp is unchanged. `None` where a full check is needed.
    ///
    /// May block for some microseconds a claim; called on a blocking thread, with many claims.
    fn glance(&self, claims: &[&Claim], _site: &Site) -> Vec<Option<Finding>> {
        vec![None; claims.len()]
    }

    /// Checks a claim against the present state of the world.
    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding>;

    /// Measures the future expectation of a claim, and returns the value in an `ok` finding. A kind without
    /// pins keeps this default.
    ///
    /// A null value cannot be pinned: the claim is `failed` then.
    async fn pin(&self, _claim: &Claim, _site: &Site) -> Result<Finding, Finding> {
        let kind = self.kind().name;
        Err(Finding::failed(format!("`{kind}` evidence needs an expected value, and cannot be pinned")))
    }
}

/// The properties that the claims of a [`Probe`] share.
#[derive(Debug, Clone, Copy)]
pub struct ProbeKind {
    name: &'static str,
    cost: Cost,
    is_live: bool,
    is_local: fn(&Claim) -> bool,
}

impl ProbeKind {
    /// Creates a kind by its recorded name, such as `file_sha256`. Every machine can check its claims.
    pub const fn new(name: &'static str, cost: Cost) -> Self {
        Self { name, cost, is_live: false, is_local: |_| false }
    }

    /// Marks the subjects as local to a machine, as files and processes are. A claim from another machine
    /// cannot be checked.
    #[must_use]
    pub const fn local(self) -> Self {
        self.local_if(|_| true)
    }

    /// Marks the subjects of some claims as local to a machine.
    #[must_use]
    pub const fn local_if(self, is_local: fn(&Claim) -> bool) -> Self {
        Self { is_local, ..self }
    }

    /// Marks the subjects as ending with the machine: a process, a port, a container.
    #[must_use]
    pub const fn live(self) -> Self {
        Self { is_live: true, ..self }
    }
}

/// The cost of a check. Checks are made in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cost {
    /// Reads only recorded values.
    Recorded,
    /// Asks the system about a name.
    Asking,
    /// Reads a file of any length.
    Reading,
    /// Waits for another program or machine.
    Waiting,
}

/// Returns, in order, the canonical names of the subjects' files ([`Claim::file`]); `None` if the subject is
/// already the canonical name, or if the lookup is not done by `deadline`.
pub(crate) async fn other_names(
    subjects: Vec<String>,
    site: &Site,
    deadline: tokio::time::Instant,
) -> Vec<Option<String>> {
    let (site, count) = (site.clone(), subjects.len());
    let look = move || subjects.iter().map(|subject| safe_open::other_name(&site, subject)).collect();
    match tokio::time::timeout_at(deadline, tokio::task::spawn_blocking(look)).await {
        Ok(Ok(names)) => names,
        Ok(Err(_)) | Err(_) => vec![None; count],
    }
}

/// The place of checks: base folder, allowed folders, machine, and the recorded exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    base: Option<PathBuf>,
    allowed: Vec<PathBuf>,
    exit_code: Option<i32>,
    host: String,
    is_shared: bool,
}

impl Default for Site {
    fn default() -> Self {
        let host = host_name();
        Self { base: None, allowed: Vec::new(), exit_code: None, host, is_shared: false }
    }
}

impl Site {
    /// Creates a site with paths beneath `base`, the working folder of the run's steps.
    pub fn beneath(base: impl Into<PathBuf>) -> Self {
        Self { base: Some(base.into()), ..Self::default() }
    }

    /// Creates a site without a folder: claims about files cannot be checked there.
    pub fn nowhere() -> Self {
        Self::default()
    }

    /// Allows absolute paths beneath `folder`, too.
    #[must_use]
    pub fn allowing(mut self, folder: impl Into<PathBuf>) -> Self {
        self.allowed.push(folder.into());
        self
    }

    /// Sets the host name, in place of this machine's name.
    #[must_use]
    pub fn on_host(self, host: impl Into<String>) -> Self {
        Self { host: host.into(), ..self }
    }

    /// Marks the files as shared between all machines: claims about them can be checked on any machine.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }

    /// Sets the recorded exit code of the step.
    #[must_use]
    pub fn with_exit_code(self, exit_code: Option<i32>) -> Self {
        Self { exit_code, ..self }
    }

    /// Returns the base folder, if there is one.
    pub fn base(&self) -> Option<&Path> {
        self.base.as_deref()
    }

    /// Returns the folders of allowed absolute paths.
    pub fn allowed(&self) -> &[PathBuf] {
        &self.allowed
    }

    /// Returns the name of the machine.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the machine of a claim, if only this other machine could check it.
    pub(crate) fn is_foreign_to<'a>(&self, claim: &'a Claim) -> Option<&'a str> {
        claim.host.as_deref().filter(|host| !self.is_shared && *host != self.host)
    }

    /// Returns the recorded exit code of the step.
    pub fn exit_code(&self) -> Option<i32> {
        self.exit_code
    }
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    verdict: Verdict,
    found: Value,
    why: Option<String>,
    stamp: Option<String>,
    may_change: bool,
    /// The finding describes the world, not a flaw of the claim.
    is_of_world: bool,
}

impl Finding {
    fn of(verdict: Verdict, found: Value, why: Option<String>) -> Self {
        Self { verdict, found, why, stamp: None, may_change: false, is_of_world: false }
    }

    /// Creates a finding: the claim holds, with the value found.
    pub fn ok(found: impl Into<Value>) -> Self {
        Self { is_of_world: true, ..Self::of(Verdict::Ok, found.into(), None) }
    }

    /// Creates a finding: the claim does not hold, as the value found shows.
    pub fn differs(found: impl Into<Value>) -> Self {
        Self { is_of_world: true, ..Self::of(Verdict::Failed, found.into(), None) }
    }

    /// Creates a finding with the value found: [`ok`](Self::ok) if the claim holds, else
    /// [`differs`](Self::differs).
    pub fn compared(holds: bool, found: impl Into<Value>) -> Self {
        if holds { Self::ok(found) } else { Self::differs(found) }
    }

    /// Creates a finding: the claim does not hold, as its subject does not exist.
    pub fn absent(why: impl Into<String>) -> Self {
        Self { is_of_world: true, ..Self::failed(why) }
    }

    /// Creates a finding: the claim can never hold, for this reason. Its negation
    /// ([`Terms::not`](crate::record::Terms::not)) does not hold either.
    pub fn failed(why: impl Into<String>) -> Self {
        Self::of(Verdict::Failed, Value::Null, Some(why.into()))
    }

    /// Creates a finding: the check could not be made, and a retry within moments would not help.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::of(Verdict::Unknown, Value::Null, Some(why.into()))
    }

    /// Adds a reason to the value found.
    #[must_use]
    pub fn because(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// Adds the stamp of the subject, for a claim whose [terms](crate::record::Terms::fast) trust stamps.
    #[must_use]
    pub fn stamped(self, stamp: impl Into<String>) -> Self {
        Self { stamp: Some(stamp.into()), ..self }
    }

    /// Returns whether the finding describes the world, not a flaw of the claim. If so, a failed claim's
    /// negation holds.
    pub fn is_of_world(&self) -> bool {
        self.is_of_world
    }

    /// Marks the finding as failing the negated claim, too: its subject could not be inspected.
    #[must_use]
    pub fn either_way(self) -> Self {
        Self { is_of_world: false, ..self }
    }

    /// Converts the finding to the finding of the negated claim.
    fn reversed(self) -> Self {
        match (self.verdict, self.is_of_world) {
            (Verdict::Ok, true) => Self { verdict: Verdict::Failed, why: None, ..self },
            (Verdict::Failed, true) => Self { verdict: Verdict::Ok, ..self },
            _ => self,
        }
    }

    /// Creates a finding: the check could not be made yet, and is retried while time remains.
    pub fn unknown_yet(why: impl Into<String>) -> Self {
        Self { may_change: true, ..Self::unknown(why) }
    }

    /// Returns the verdict: `ok`, `failed` or `unknown`.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Returns the value found; null without a value.
    pub fn found(&self) -> &Value {
        &self.found
    }

    /// Returns the reason of a failed or unknown verdict, if the value found does not show it.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }
}

impl From<InvalidExpectation> for Finding {
    fn from(error: InvalidExpectation) -> Self {
        Self::failed(error.to_string())
    }
}
