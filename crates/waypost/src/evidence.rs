//! Evidence: whether what a step claims to have done is there, now.
//!
//! A [`Pack`](crate::record::Pack) has claims and the rule over them; a [`Probe`] checks claims of one kind; the
//! [`Verifier`] asks the probes, in parallel and within limits, and gives a pack back with its verdicts. Only `ok` is
//! trust, and it is earned: an empty pack, a missing expectation, a kind without a probe, a path that leaves its
//! folder, a check that could not be made, none of them is ever `ok`.
//!
//! Three probes need nothing but this crate: `artifact_exists`, `file_sha256` and `command_exit`. Others implement
//! [`Probe`] and are given to [`Verifier::with_probe`].
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
//! Nothing here knows runs or stores; when to check what is the business of plan, engine and recorder.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde_json::Value;

use crate::lock::host_name;
use crate::record::{Claim, Verdict};

mod beneath;
mod blocking;
mod exit;
mod expect;
mod files;
mod pack;
mod pattern;
mod spot;
mod tree;
mod verifier;

pub use exit::ExitProbe;
pub use expect::{InvalidExpectation, check_size, parse_size};
pub use files::{
    ExistsProbe, Sha256Probe, check_mode, find_all, find_folder, find_names, modified, read_file,
};
pub use pack::{CLAIMS_MAX, InvalidPack, Summary, UNMET_MAX};
pub(crate) use pattern::reaches;
pub use pattern::{check_pattern, is_pattern, literal_path, named_by};
pub use spot::{Spot, find_spot};
pub use verifier::{Limits, Verifier};

/// Recorded kind of claims that a file or folder is there.
pub const ARTIFACT_EXISTS: &str = "artifact_exists";
/// Recorded kind of claims about the digest of a file.
pub const FILE_SHA256: &str = "file_sha256";
/// Recorded kind of claims about the exit code that a step recorded.
pub const COMMAND_EXIT: &str = "command_exit";

/// Checks claims of one kind.
///
/// # Contract
/// - A check changes nothing and runs nothing that the claim does not name.
/// - A claim whose expectation is missing or not understood is never `ok`: [`Finding::failed`] where it can never
///   hold, [`Finding::unknown`] where another version of the probe might know it.
/// - What does not hold as the world is like is [`Finding::differs`] or [`Finding::absent`], and no other finding is: only
///   of these the opposite holds.
/// - It looks at [`Claim::terms`] no more than a check needs: the [`Verifier`] does what they say.
/// - A check may be dropped at any time, and must then end by itself soon.
/// - A check, pin or glance that panics makes its claim `unknown`, and takes down neither the caller nor other checks.
/// - A check never blocks its thread: while it does, no limit can end it, and other checks and steps wait. What blocks, as
///   reading a file, belongs into [`tokio::task::spawn_blocking`].
/// - One call is one attempt: the [`Verifier`] sets the time and tries again.
#[async_trait]
pub trait Probe: Debug + Send + Sync {
    /// Returns the recorded kind of the claims that it checks, such as `file_sha256`.
    fn kind(&self) -> &str;

    /// Says what a check costs; cheap ones are made first.
    fn cost(&self) -> Cost;

    /// Says whether what it checks dies with the machine: a process, a port, a container.
    fn is_live(&self) -> bool;

    /// Says whether what a claim is about is of one machine, as files and processes are: of a claim made on another one
    /// nothing can be said.
    fn is_local(&self, claim: &Claim) -> bool;

    /// Says of a claim on [terms](crate::record::Terms::fast) that trust a [stamp](Claim::stamp) whether the stamp is still
    /// that of then: what a check would come to that need not read. Nothing is said of what takes a check to know.
    ///
    /// It is called where blocking is no harm, with many claims one after the other, and may take some microseconds.
    fn glance(&self, _claim: &Claim, _site: &Site) -> Option<Finding> {
        None
    }

    /// Checks a claim against the world as it is now.
    async fn check(&self, claim: &Claim, site: &Site) -> Finding;

    /// Takes from the world what a claim shall expect from now on. An `ok` finding carries it as found.
    ///
    /// A kind that cannot be pinned answers [`Finding::failed`]. Null is nothing to pin: the claim is `failed` then.
    async fn pin(&self, claim: &Claim, site: &Site) -> Finding;
}

/// What a check costs, in the order in which checks are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cost {
    /// It looks at what was recorded.
    Recorded,
    /// It asks the system about a name.
    Asking,
    /// It reads a file, as long as that may be.
    Reading,
    /// It waits for another program or machine.
    Waiting,
}

/// Returns the names of the files that subjects lead to, where those are not the subjects themselves
/// ([`Claim::file`]); in their order. What is not found out before `deadline` has none.
pub(crate) async fn other_names(
    subjects: Vec<String>,
    site: &Site,
    deadline: tokio::time::Instant,
) -> Vec<Option<String>> {
    let (site, count) = (site.clone(), subjects.len());
    let look = move || subjects.iter().map(|subject| beneath::other_name(&site, subject)).collect();
    match tokio::time::timeout_at(deadline, tokio::task::spawn_blocking(look)).await {
        Ok(Ok(names)) => names,
        Ok(Err(_)) | Err(_) => vec![None; count],
    }
}

/// Where claims are checked, and what was recorded there.
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
    /// Makes a site whose paths lie beneath `base`, the folder that the run's steps work in.
    pub fn beneath(base: impl Into<PathBuf>) -> Self {
        Self { base: Some(base.into()), ..Self::default() }
    }

    /// Makes a site without a folder: claims about files cannot be checked there.
    pub fn nowhere() -> Self {
        Self::default()
    }

    /// Allows absolute paths beneath `folder` too.
    #[must_use]
    pub fn allowing(mut self, folder: impl Into<PathBuf>) -> Self {
        self.allowed.push(folder.into());
        self
    }

    /// Goes by another name than that of this machine.
    #[must_use]
    pub fn on_host(self, host: impl Into<String>) -> Self {
        Self { host: host.into(), ..self }
    }

    /// Says that all machines see the same files there: claims about them can be checked wherever they were made.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }

    /// Sets the exit code that the step recorded.
    #[must_use]
    pub fn with_exit_code(self, exit_code: Option<i32>) -> Self {
        Self { exit_code, ..self }
    }

    /// Returns the folder that paths lie beneath, if there is one.
    pub fn base(&self) -> Option<&Path> {
        self.base.as_deref()
    }

    /// Returns the folders beneath which absolute paths are allowed.
    pub fn allowed(&self) -> &[PathBuf] {
        &self.allowed
    }

    /// Returns the name of the machine.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the machine that a claim was made on, if only that one could check it.
    pub(crate) fn is_foreign_to<'a>(&self, claim: &'a Claim) -> Option<&'a str> {
        claim.host.as_deref().filter(|host| !self.is_shared && *host != self.host)
    }

    /// Returns the exit code that the step recorded.
    pub fn exit_code(&self) -> Option<i32> {
        self.exit_code
    }
}

/// What one check came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    verdict: Verdict,
    found: Value,
    why: Option<String>,
    stamp: Option<String>,
    may_change: bool,
    /// It is what the world is like, and not what is wrong with the claim.
    is_of_world: bool,
}

impl Finding {
    fn of(verdict: Verdict, found: Value, why: Option<String>) -> Self {
        Self { verdict, found, why, stamp: None, may_change: false, is_of_world: false }
    }

    /// Says that the claim holds, and what was found.
    pub fn ok(found: impl Into<Value>) -> Self {
        Self { is_of_world: true, ..Self::of(Verdict::Ok, found.into(), None) }
    }

    /// Says that the claim does not hold: what was found instead speaks for itself.
    pub fn differs(found: impl Into<Value>) -> Self {
        Self { is_of_world: true, ..Self::of(Verdict::Failed, found.into(), None) }
    }

    /// Says that the claim does not hold, as what it is about is not there.
    pub fn absent(why: impl Into<String>) -> Self {
        Self { is_of_world: true, ..Self::failed(why) }
    }

    /// Says that the claim can never hold, and why. Its opposite ([`Terms::not`](crate::record::Terms::not)) does not
    /// hold either.
    pub fn failed(why: impl Into<String>) -> Self {
        Self::of(Verdict::Failed, Value::Null, Some(why.into()))
    }

    /// Says that the check could not be made, and that trying again in a moment would not help.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::of(Verdict::Unknown, Value::Null, Some(why.into()))
    }

    /// Says why, beside what was found.
    #[must_use]
    pub fn because(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// Says how what was found looked from outside, for a claim whose [terms](crate::record::Terms::fast) trust that later.
    #[must_use]
    pub fn stamped(self, stamp: impl Into<String>) -> Self {
        Self { stamp: Some(stamp.into()), ..self }
    }

    /// Says whether it tells what the world is like, and not what is wrong with the claim: then the opposite of a claim that
    /// does not hold does.
    pub fn is_of_world(&self) -> bool {
        self.is_of_world
    }

    /// Makes it one by which the opposite of the claim does not hold either: what that would be about could not be looked at.
    #[must_use]
    pub fn either_way(self) -> Self {
        Self { is_of_world: false, ..self }
    }

    /// Makes it that of the opposite claim.
    fn reversed(self) -> Self {
        match (self.verdict, self.is_of_world) {
            (Verdict::Ok, true) => Self { verdict: Verdict::Failed, why: None, ..self },
            (Verdict::Failed, true) => Self { verdict: Verdict::Ok, ..self },
            _ => self,
        }
    }

    /// Says that the check could not be made just now: it is tried again while there is time.
    pub fn unknown_yet(why: impl Into<String>) -> Self {
        Self { may_change: true, ..Self::unknown(why) }
    }

    /// Returns the verdict: `ok`, `failed` or `unknown`.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Returns what was found; null where there is nothing to show.
    pub fn found(&self) -> &Value {
        &self.found
    }

    /// Returns why it does not hold or could not be checked, where that is not plain from what was found.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }
}
