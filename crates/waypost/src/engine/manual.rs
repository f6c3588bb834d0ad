//! Changes by a person: labelled checkpoints, and edited states of scopes.
//!
//! A labelled checkpoint changes neither position nor state. A scope can be edited while it is open, and after
//! its end until the join has run. The edit is a record of the scope, and the join reads the edit. Joined or
//! abandoned scopes cannot be edited, because no step would read the change. An edited scope that ended with a
//! failed child resumes with this child and its cancelled siblings.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::id::{CheckpointRef, Digest, RunId, ScopePath, StepId};
use crate::projection::events::PRUNED;
use crate::record::{Claim, FrontierEntry, Pack, Phase, Position, Reason, Record, RunStatus, Try};
use crate::store::{
    Batch, BatchId, Lease, Scan, ScanOrder, Signal, SignalKind, Store, StoreError, StoreExt as _, Summary,
    TrimMode, Trimmed,
};

use crate::engine::chain::{Chain, Draft, unchanged_body};
use crate::engine::inspect::{Snapshot, position_as_recorded};
use crate::engine::resume::begin::manual_draft;
use crate::engine::scope::Scope;
use crate::engine::time_travel::rollback::joins;
use crate::engine::walk::choice::{ChoiceScope, choose};
use crate::engine::{EditScope, Engine, RunError};

pub use crate::record::MARK;

/// The key of progress records with the verdicts of a verification.
pub const VERIFIED_KEY: &str = "evidence verified";

/// Size limit of a label.
const LABEL_BYTES_MAX: usize = 64;
/// The polling interval while a running session writes the checkpoint.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a session may take: it polls for requests every half second, between two commits.
const WRITTEN_WITHIN: Duration = Duration::from_secs(60);

/// The result of [`Engine::prune`].
#[derive(Debug)]
pub struct Pruned {
    /// The dropped states.
    pub trimmed: Trimmed,
    /// The error if the note about the prune could not be written, for example on a full disk. The prune itself
    /// succeeded.
    pub unsaid: Option<RunError>,
}

/// The effect of a record by hand on the run.
#[derive(Debug)]
enum ManualEffect {
    None,
    /// Consumes a signal.
    Consume(String),
    /// Interrupts the run.
    Interrupt,
}

impl Engine {
    /// Writes a checkpoint of the main scope's current position, with `label` for lookups. Returns once the
    /// checkpoint is durable.
    ///
    /// A running session writes the checkpoint within [`RENEW_INTERVAL`](crate::engine::RENEW_INTERVAL); without a
    /// session, this call writes the checkpoint. The checkpoint does not affect the further work of the run.
    /// Labels need not be unique: the newest counts.
    ///
    /// # Errors
    /// - [`RunError::NotMarked`]: the label is not a valid name. Nothing changed.
    /// - [`RunError::Store`] with [`StoreError::Held`]: the holder of the lease has not written the checkpoint
    ///   within a minute: the holder is not a session, or is suspended. The request stays queued, and a session
    ///   that resumes still writes the checkpoint. With [`StoreError::Damaged`]: the newest record of the run is
    ///   damaged; resume the run first.
    /// - [`RunError::NoState`]: retention dropped the current state.
    pub async fn checkpoint(&self, run: &RunId, label: Option<&str>) -> Result<CheckpointRef, RunError> {
        check_label(run, label)?;
        let now = self.clock.now();
        let (nanosecond, process) = (now.as_nanosecond().to_le_bytes(), std::process::id().to_le_bytes());
        let id = Digest::of_parts([label.unwrap_or_default().as_bytes(), &nanosecond, &process]).to_string();
        let id = format!("mark-{}", &id[..24]);
        let kind = SignalKind::Checkpoint { label: label.map(ToOwned::to_owned) };
        let asked = Signal { id, kind, scope: None, sender: String::new(), created_at: now };
        let begun = Instant::now();
        let mut is_asked = false;
        loop {
            let holder = self.store.run(run).await?.summary.holder;
            if let Some(holder) = holder.filter(|holder| !holder.is_gone()) {
                if !is_asked {
                    self.store.signal(run, &asked).await?;
                    is_asked = true;
                }
                if let Some(at) = self.marked(run, &asked.id).await? {
                    return Ok(at);
                }
                if begun.elapsed() >= WRITTEN_WITHIN {
                    return Err(
                        StoreError::Held { run: run.clone(), holder: Some(holder), until: None }.into()
                    );
                }
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            }
            self.store.wait_for_release(run).await?;
            let lease = match self.store.acquire(run, &ScopePath::main(), &self.holder()?).await {
                // A session has begun in the meantime.
                Err(StoreError::Held { holder: Some(holder), .. }) if !holder.is_gone() => continue,
                lease => lease?,
            };
            // The session may have written the checkpoint before its end.
            let marked = match self.marked(run, &asked.id).await {
                Ok(None) => self.mark_under(&lease, label, &asked.id, is_asked).await,
                Ok(Some(at)) => {
                    self.store.release(lease, None).await?;
                    return Ok(at);
                }
                Err(error) => Err(error),
            };
            if marked.is_err() {
                let _ = self.store.release(lease, None).await;
            }
            return marked;
        }
    }

    async fn marked(&self, run: &RunId, id: &str) -> Result<Option<CheckpointRef>, RunError> {
        let scan = Scan { external: Some(id.to_owned()), ..Scan::of(run) };
        let found = self.store.scan(&scan).await?;
        Ok(found.records.first().map(|record| record.header().reference()))
    }

    /// Writes the checkpoint under a lease; the batch releases the lease.
    async fn mark_under(
        &self,
        lease: &Lease,
        label: Option<&str>,
        id: &str,
        is_asked: bool,
    ) -> Result<CheckpointRef, RunError> {
        let effect = if is_asked { ManualEffect::Consume(id.to_owned()) } else { ManualEffect::None };
        self.write_under(lease, mark(label, id), effect).await
    }

    /// Records the verdicts of a verification, as verified claims. The position of the run is unchanged.
    ///
    /// With more than [`CLAIMS_MAX`](crate::evidence::CLAIMS_MAX) claims, only the counts are stored.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint); [`RunError::Store`] with [`StoreError::Held`] if another worker holds
    /// the lease.
    pub async fn record_verdicts(&self, run: &RunId, claims: Vec<Claim>) -> Result<CheckpointRef, RunError> {
        let pack = Pack::all(claims);
        let value = serde_json::to_value(pack.summary()).unwrap_or_default();
        let phase = Phase::Progress { key: VERIFIED_KEY.to_owned(), value };
        let mut draft = Draft::new(phase, Reason::Manual, None, Try::default());
        draft.report.evidence = Some(pack).filter(|pack| pack.check_size().is_ok());
        self.store.wait_for_release(run).await?;
        let lease = self.store.acquire(run, &ScopePath::main(), &self.holder()?).await?;
        let written = self.write_under(&lease, draft, ManualEffect::None).await;
        if written.is_err() {
            // The error to report is the earlier error.
            let _ = self.store.release(lease, None).await;
        }
        written
    }

    /// Prunes the states of an idle run, except for the newest `keep` and other states required by a resume
    /// ([`retention::kept`](crate::store::retention::kept)). Records the prune in the run
    /// ([`EventKind::Pruned`]); without a dropped state, nothing is recorded.
    ///
    /// # Errors
    /// [`RunError::Store`] with [`StoreError::Held`] if another worker holds the lease; else with the error
    /// of the trim. The next call prunes the remaining states.
    ///
    /// [`EventKind::Pruned`]: crate::projection::events::EventKind::Pruned
    pub async fn prune(&self, run: &RunId, keep: u32) -> Result<Pruned, RunError> {
        self.store.wait_for_release(run).await?;
        let lease = self.store.acquire(run, &ScopePath::main(), &self.holder()?).await?;
        let trimmed = self.store.trim(&lease, keep, TrimMode::Apply).await;
        let mut unsaid = None;
        if let Ok(trimmed) = trimmed
            && let Some(note) = trimmed.note(keep)
        {
            let phase = Phase::Progress { key: PRUNED.to_owned(), value: Value::Null };
            let mut draft = Draft::new(phase, Reason::Manual, None, Try::default());
            draft.report.notes.push(note);
            match self.write_under(&lease, draft, ManualEffect::None).await {
                Ok(_) => return Ok(Pruned { trimmed, unsaid }),
                Err(error) => unsaid = Some(error),
            }
        }
        // Released also after a failed trim. The first error is returned.
        let released = self.store.release(lease, None).await;
        let trimmed = trimmed?;
        released?;
        Ok(Pruned { trimmed, unsaid })
    }

    /// Interrupts a run that no session holds: a run in the queue, or a waiting run. No worker claims an interrupted run.
    /// Returns `None` for a run with another status, which is unchanged.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint); [`RunError::Store`] with [`StoreError::Held`] if a session holds the run:
    /// request the stop by a [`SignalKind::Stop`].
    pub async fn interrupt(&self, run: &RunId, by: &str) -> Result<Option<CheckpointRef>, RunError> {
        let lease = self.store.acquire(run, &ScopePath::main(), &self.holder()?).await?;
        let phase = Phase::Interrupted { in_progress: false, by: by.to_owned() };
        let draft = Draft::new(phase, Reason::Stopped, None, Try::default());
        let written = match Snapshot::main(self.store.as_ref(), run).await {
            Ok(snapshot) => match snapshot.entry.summary.summary.status {
                RunStatus::Queued | RunStatus::Waiting => {
                    self.write_under(&lease, draft, ManualEffect::Interrupt).await.map(Some)
                }
                _ => Ok(None),
            },
            Err(error) => Err(error.into()),
        };
        if !matches!(written, Ok(Some(_))) {
            // A committed batch has released the lease. The error to report is the earlier error.
            let _ = self.store.release(lease, None).await;
        }
        written
    }

    /// Writes a record of the main scope with the same position and state, under a lease; the batch releases the lease.
    async fn write_under(
        &self,
        lease: &Lease,
        mut draft: Draft,
        effect: ManualEffect,
    ) -> Result<CheckpointRef, RunError> {
        let store = self.store.as_ref();
        let snapshot = Snapshot::main(store, lease.run()).await?;
        let newest = snapshot.newest();
        if let Some(damage) = snapshot.damaged().next() {
            return Err(StoreError::of_damage(damage.clone(), Some(newest.header().seq)).into());
        }
        let mut summary = None;
        match effect {
            ManualEffect::None | ManualEffect::Consume(_) => draft.keep_status(newest),
            ManualEffect::Interrupt => {
                let status = RunStatus::Interrupted;
                draft.status = Some(status);
                summary = Some(Summary { status, wake_at: None, ..snapshot.entry.summary.summary.clone() });
            }
        }
        let at = newest.header().reference();
        let at = CheckpointRef { seq: at.seq + 1, ..at };
        let body = unchanged_body(newest, &position_as_recorded(newest)?)?;
        let chain = Chain { token: lease.token(), ..Chain::after(newest) };
        let mut records = Vec::new();
        chain.seal(&[draft], body, self.clock.now(), &mut records).map_err(|source| RunError::Record {
            run: lease.run().clone(),
            step: None,
            source,
        })?;
        let batch = Batch {
            id: BatchId { token: lease.token(), count: 1 },
            records,
            updated_at: summary.is_none().then_some(snapshot.entry.summary.updated_at),
            summary,
            consumed: match effect {
                ManualEffect::Consume(id) => vec![id],
                ManualEffect::None | ManualEffect::Interrupt => Vec::new(),
            },
            release: true,
        };
        let lost = |source| RunError::Checkpoint { at: at.to_string(), source };
        store.append(&[lease], batch).await.map_err(lost)?;
        Ok(at)
    }
}

/// Finds the newest checkpoint with this label, written by [`Engine::checkpoint`].
///
/// # Errors
/// Those of the store.
pub async fn labelled(
    store: &dyn Store,
    run: &RunId,
    label: &str,
) -> Result<Option<CheckpointRef>, StoreError> {
    let (label, order) = (Some((MARK.to_owned(), label.to_owned())), ScanOrder::NewestFirst);
    let mut scan = Scan { scope: Some(ScopePath::main()), label, order, limit: 1, ..Scan::of(run) };
    loop {
        let found = store.scan(&scan).await?;
        match (found.records.first(), found.next) {
            (Some(record), _) => return Ok(Some(record.header().reference())),
            (None, Some(cursor)) => scan.cursor = Some(cursor),
            (None, None) => return Ok(None),
        }
    }
}

/// Makes the draft of a labelled checkpoint.
pub(super) fn mark(label: Option<&str>, id: &str) -> Draft {
    let phase = Phase::Progress { key: MARK.to_owned(), value: json!(label) };
    let mut draft = Draft::new(phase, Reason::Manual, None, Try::default());
    draft.external = Some(id.to_owned());
    if let Some(label) = label {
        draft.labels.insert(MARK.to_owned(), label.to_owned());
    }
    draft
}

fn check_label(run: &RunId, label: Option<&str>) -> Result<(), RunError> {
    let Some(label) = label else { return Ok(()) };
    let is_fit = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    let why = if label.is_empty() {
        "the label is empty".to_owned()
    } else if label.len() > LABEL_BYTES_MAX {
        format!("the label has more than {LABEL_BYTES_MAX} characters")
    } else if label.bytes().all(|byte| byte.is_ascii_digit()) {
        "the label looks like the number of a checkpoint".to_owned()
    } else if let Some(wrong) = label.chars().find(|sign| !is_fit(*sign)) {
        format!("the label contains `{wrong}`: use letters, digits, `-`, `_` and `.`")
    } else {
        return Ok(());
    };
    Err(RunError::NotMarked { run: run.clone(), label: label.to_owned(), why })
}

/// State edits by scope.
#[derive(Debug)]
pub(super) struct Edits<S>(BTreeMap<ScopePath, Vec<EditScope<S>>>);

impl<S> Edits<S> {
    pub(super) fn of(edits: Vec<(ScopePath, EditScope<S>)>) -> Self {
        let mut by_scope: BTreeMap<ScopePath, Vec<EditScope<S>>> = BTreeMap::new();
        for (scope, edit) in edits {
            by_scope.entry(scope).or_default().push(edit);
        }
        Self(by_scope)
    }

    pub(super) fn none() -> Self {
        Self(BTreeMap::new())
    }

    /// Takes the edits of a scope.
    pub(super) fn take(&mut self, scope: &ScopePath) -> Self {
        Self(self.0.remove_entry(scope).into_iter().collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the scopes with remaining edits.
    pub(super) fn scopes(&self) -> impl Iterator<Item = &ScopePath> {
        self.0.keys()
    }

    /// Returns the scopes of a retry; empty if a person names no scope to retry. A choice is about a step, and leaves
    /// no other scope failed.
    pub(super) fn retried(&self) -> BTreeSet<ScopePath> {
        let mut edits = self.0.values().flatten();
        let names = edits.any(|edit| edit.choices.is_empty());
        self.0.keys().filter(|_| names).cloned().collect()
    }

    /// Returns the steps that read an edited state.
    pub(super) fn read_by(&self) -> Vec<StepId> {
        self.0.values().flatten().flat_map(|edit| edit.again.iter().cloned()).collect()
    }

    /// Adds the choices to the position of a scope.
    ///
    /// # Errors
    /// Those of [`choose`].
    pub(super) fn choose(&self, scope: ChoiceScope<'_>, position: &mut Position) -> Result<(), RunError> {
        let mut edits = self.0.values().flatten();
        edits.try_for_each(|edit| choose(scope, &edit.choices, position))
    }

    /// Applies the edits to the state of a scope, as a whole or not at all, and drafts the record.
    ///
    /// # Errors
    /// [`RunError::NotEdited`]: an edit was refused, or the scope ended with open children.
    pub(super) fn apply(self, scope: &mut Scope<'_, S>, newest: &Record) -> Result<(), RunError> {
        if self.is_empty() {
            return Ok(());
        }
        let (run, path) = (scope.chain.run.clone(), scope.path().clone());
        // If only the join failed, the join runs again with the edit.
        let is_fanned_out = |entry: &FrontierEntry| entry.has_children() && !joins(entry);
        if newest.header().end.is_some() && scope.position.frontier.iter().any(is_fanned_out) {
            let why = "the scope ended with its children; edit a child instead";
            return Err(RunError::NotEdited { run, scope: path, why: why.to_owned() });
        }
        for edit in self.0.into_values().flatten() {
            if edit.item.is_some() {
                scope.position.item.clone_from(&edit.item);
            }
            edit.apply(&mut scope.state).map_err(|why| {
                let (run, path) = (run.clone(), path.clone());
                RunError::NotEdited { run, scope: path, why }
            })?;
        }
        scope.drafts.push(manual_draft());
        Ok(())
    }
}

/// Returns why the scope of an unapplied edit cannot be edited, if there is such a scope.
///
/// # Errors
/// [`RunError::NotEdited`]: there is a scope.
pub(super) async fn refuse_left(
    engine: &Engine,
    run: &RunId,
    left: Option<ScopePath>,
) -> Result<(), RunError> {
    let Some(scope) = left else { return Ok(()) };
    let run = run.clone();
    let why = if scope.is_main() {
        "the main scope has an edit of its own"
    } else if engine.store.scopes(&run).await?.contains(&scope) {
        "no step waits for the scope: it is joined or abandoned"
    } else {
        "the run has no such scope"
    };
    Err(RunError::NotEdited { run, scope, why: why.to_owned() })
}

/// Removes the retries of scopes entered later in this resume: the failed steps run on entry. Returns the edits of such
/// scopes with another item or with choices. These edits must be recorded first, and the retries stay.
pub(crate) fn defer_retries<S>(
    edits: &mut Vec<(ScopePath, EditScope<S>)>,
    unreached: &BTreeSet<ScopePath>,
) -> Vec<(ScopePath, EditScope<S>)> {
    let of_scope = |(scope, edit): &mut (ScopePath, EditScope<S>)| {
        let is_first = edit.decides() && unreached.contains(scope);
        is_first.then(|| (scope.clone(), std::mem::replace(edit, EditScope::retry())))
    };
    let first: Vec<_> = edits.iter_mut().filter_map(of_scope).collect();
    if first.is_empty() {
        edits.retain(|(scope, _)| !unreached.contains(scope));
    }
    first
}

/// Refuses all edits.
///
/// # Errors
/// [`RunError::NotEdited`]: there is an edit.
pub(super) fn refuse_all<S>(
    run: &RunId,
    edits: &[(ScopePath, EditScope<S>)],
    why: &str,
) -> Result<(), RunError> {
    match edits.first() {
        None => Ok(()),
        Some((scope, _)) => {
            let (run, scope) = (run.clone(), scope.clone());
            Err(RunError::NotEdited { run, scope, why: why.to_owned() })
        }
    }
}
