//! The contract suite and the differential test see planted bugs: one store for each way of breaking a clause.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use waypost::lock::Holder;
use waypost::memory::MemoryStore;
use waypost::record::{Record, SealedRun};
use waypost::store::{
    Appended, Batch, Blobs, Damage, FIRST_TOKEN, Heads, Lease, Page, Queue, Renewal, RunEntry, RunQuery,
    Runs, Scan, Scanned, Signal, Signalled, Store, StoreError, TrimMode, Trimmed,
};
use waypost::{RunId, ScopePath};
use waypost_testing::contract::{self, DamageTarget, StoreFixture, block_on};
use waypost_testing::differential::find_difference;
use waypost_testing::memory::MemoryFixture;

/// What a store does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    CreatesInPart,
    CreatesAnew,
    AcknowledgesWithoutWriting,
    AppendsInPart,
    AcceptsConflicts,
    AppliesAgain,
    AcceptsStaleTokens,
    SharesTheLease,
    HidesTheHolder,
    GivesTheSameToken,
    KeepsTheLease,
    ForgetsWhenItIsDue,
    ForgetsStops,
    HidesTheLoss,
    TakesSignalsTwice,
    SortsHeadsByName,
    HidesDamage,
    GivesSeqsAgain,
    DeniesADamagedRun,
    DropsBodies,
    FallsBackSilently,
    NamesTheWrongOlder,
    IgnoresLabels,
    LosesTheEndOfPages,
    SortsRunsByClock,
    TellsStatusAsWritten,
    MakesRunsYounger,
    TakesTheLeaseToRead,
    DeletesDamage,
    LetsAnyoneQuarantine,
    TrimsInADryRun,
    KeepsOneTooFew,
    CountsFailures,
    DeletesWhatIsHeld,
    AppendsBlobsUnfenced,
    ReadsBlobsElsewhere,
    TakesAnyBlobName,
    StaysOpen,
}

use Bug::*;

/// Each bug, with the clause that must see it, and whether calls and answers alone show it.
const PLANTED: &[(&str, Bug, bool)] = &[
    ("create_is_all_or_nothing", CreatesInPart, true),
    ("create_refuses_an_existing_run", CreatesAnew, true),
    ("acknowledged_is_durable", AcknowledgesWithoutWriting, true),
    ("append_is_all_or_nothing", AppendsInPart, true),
    ("append_continues_the_chain", AcceptsConflicts, true),
    ("append_is_answered_once", AppliesAgain, true),
    ("append_needs_the_lease", AcceptsStaleTokens, true),
    ("acquire_excludes", SharesTheLease, true),
    ("acquire_excludes", HidesTheHolder, true),
    ("acquire_raises_the_token", GivesTheSameToken, true),
    ("release_frees", KeepsTheLease, true),
    ("release_frees", ForgetsWhenItIsDue, true),
    ("renew_tells_of_stop_requests", ForgetsStops, true),
    ("renew_tells_of_stop_requests", HidesTheLoss, true),
    ("signal_is_unique", TakesSignalsTwice, true),
    ("heads_are_the_newest_of_open_scopes", SortsHeadsByName, true),
    ("heads_pass_over_damage", HidesDamage, true),
    ("heads_pass_over_damage", GivesSeqsAgain, true),
    // Frozen records are not damaged by random calls, since a store may then not list the run.
    ("run_returns_exact_bytes", DeniesADamagedRun, false),
    ("load_returns_exact_bytes", DropsBodies, true),
    ("load_names_the_older_sound_one", FallsBackSilently, true),
    ("load_names_the_older_sound_one", NamesTheWrongOlder, true),
    ("scan_filters_and_pages", IgnoresLabels, true),
    ("scan_filters_and_pages", LosesTheEndOfPages, true),
    ("runs_come_newest_first", SortsRunsByClock, true),
    ("runs_tell_the_truth", TellsStatusAsWritten, true),
    ("remarks_make_no_run_younger", MakesRunsYounger, true),
    ("reading_needs_no_lease", TakesTheLeaseToRead, true),
    // What lies in quarantine is not seen by any call.
    ("quarantine_keeps_the_bytes", DeletesDamage, false),
    ("quarantine_keeps_the_bytes", LetsAnyoneQuarantine, true),
    ("trim_drops_states_never_headers", TrimsInADryRun, true),
    ("trim_drops_states_never_headers", KeepsOneTooFew, true),
    ("trim_spares_what_a_resume_needs", CountsFailures, true),
    ("delete_removes_everything", DeletesWhatIsHeld, true),
    ("blobs_are_fenced_and_appended", AppendsBlobsUnfenced, true),
    ("blobs_are_fenced_and_appended", ReadsBlobsElsewhere, true),
    ("blobs_are_fenced_and_appended", TakesAnyBlobName, true),
    // The random calls open a store again right after they closed it.
    ("closed_refuses", StaysOpen, false),
];

macro_rules! clause {
    ({ $name:expr, $fixture:expr } $($clause:ident)*) => {
        match $name {
            $(stringify!($clause) => block_on(contract::$clause($fixture)),)*
            other => panic!("no clause {other}"),
        }
    };
}

fn is_seen_by_clause(clause: &str, bug: Bug) -> bool {
    let run = || waypost_testing::for_each_clause! { { clause } { clause, Planted::fixture(bug) } };
    catch_unwind(AssertUnwindSafe(run)).is_err()
}

/// A difference, or a panic of what the answers led to.
fn is_seen_by_random_calls(bug: Bug) -> bool {
    (0..40).any(|seed| {
        let mut difference = false;
        let run = || {
            block_on(async { difference = find_difference(seed, 150, Planted::fixture(bug)).await.is_err() })
        };
        catch_unwind(AssertUnwindSafe(run)).is_err() || difference
    })
}

#[test]
fn every_clause_sees_the_bug_planted_against_it() {
    let missed: Vec<_> = PLANTED.iter().filter(|(clause, bug, _)| !is_seen_by_clause(clause, *bug)).collect();

    assert!(missed.is_empty(), "not seen: {missed:?}");
}

#[test]
fn every_clause_has_a_bug_planted_against_it() {
    macro_rules! names {
        ({} $($clause:ident)*) => { [$(stringify!($clause)),*] };
    }
    for clause in waypost_testing::for_each_clause! { { names } {} } {
        assert!(PLANTED.iter().any(|(planted, ..)| *planted == clause), "{clause} was never seen to fail");
    }
}

#[test]
fn random_calls_see_planted_bugs() {
    let shown = PLANTED.iter().filter(|(.., shown)| *shown);
    let missed: Vec<_> = shown.filter(|(_, bug, _)| !is_seen_by_random_calls(*bug)).collect();

    assert!(missed.is_empty(), "not seen: {missed:?}");
}

/// The store in memory with a bug.
#[derive(Debug, Clone)]
struct Planted {
    inner: MemoryStore,
    bug: Bug,
}

impl Planted {
    fn fixture(bug: Bug) -> PlantedFixture {
        PlantedFixture { memory: MemoryFixture::fresh(), bug }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory with {:?}", self.bug)
    }
}

struct PlantedFixture {
    memory: MemoryFixture,
    bug: Bug,
}

#[async_trait]
impl StoreFixture for PlantedFixture {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(Planted { inner: self.memory.memory(), bug: self.bug })
    }

    async fn reopen(&mut self) {
        self.memory.reopen().await;
    }

    async fn damage(&mut self, run: &RunId, place: &DamageTarget) {
        self.memory.damage(run, place).await;
    }

    async fn quarantined(&mut self, run: &RunId) -> Vec<Vec<u8>> {
        if self.bug == DeletesDamage { Vec::new() } else { self.memory.quarantined(run).await }
    }

    fn folder(&self) -> Option<PathBuf> {
        None
    }
}

#[async_trait]
impl Store for Planted {
    fn queue(&self) -> Option<&dyn Queue> {
        None
    }

    async fn create(&self, run: &SealedRun, first: Batch, holder: &Holder) -> Result<Lease, StoreError> {
        let answer = self.inner.create(run, first.clone(), holder).await;
        match &answer {
            Err(StoreError::Conflict { .. }) if self.has(CreatesInPart) => {
                let part = Batch { records: vec![first.records[0].clone()], ..first };
                let _ = self.inner.create(run, part, holder).await;
            }
            Err(StoreError::Exists { run: id }) if self.has(CreatesAnew) => {
                self.inner.drop_holder(id);
                self.inner.delete(id).await?;
                return self.inner.create(run, first, holder).await;
            }
            _ => {}
        }
        answer
    }

    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        let answer = self.inner.run(run).await;
        if self.has(DeniesADamagedRun) && matches!(answer, Err(StoreError::Damaged { .. })) {
            return Err(StoreError::no_run(self, run));
        }
        let mut entry = answer?;
        if self.has(TellsStatusAsWritten) {
            entry.summary.status = entry.summary.summary.status;
        }
        Ok(entry)
    }

    async fn acquire(&self, run: &RunId, scope: &ScopePath, holder: &Holder) -> Result<Lease, StoreError> {
        match self.inner.acquire(run, scope, holder).await {
            Err(StoreError::Held { .. }) if self.has(SharesTheLease) => {
                self.inner.drop_holder(run);
                self.inner.acquire(run, scope, holder).await
            }
            Err(StoreError::Held { run, .. }) if self.has(HidesTheHolder) => {
                Err(StoreError::Held { run, holder: None, until: None })
            }
            Ok(_) if self.has(GivesTheSameToken) => Ok(Lease::new(run.clone(), FIRST_TOKEN, None)),
            answer => answer,
        }
    }

    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        let answers = self.inner.renew(leases).await?;
        let bug = |answer: Renewal| match answer {
            Renewal::Held(_) if self.has(ForgetsStops) => Renewal::Held(Vec::new()),
            Renewal::Lost if self.has(HidesTheLoss) => Renewal::Held(Vec::new()),
            answer => answer,
        };
        Ok(answers.into_iter().map(bug).collect())
    }

    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError> {
        if self.has(KeepsTheLease) {
            return Ok(());
        }
        self.inner.release(lease, wake_at.filter(|_| !self.has(ForgetsWhenItIsDue))).await
    }

    async fn append(&self, leases: &[&Lease], batch: Batch) -> Result<Appended, StoreError> {
        if self.has(AcknowledgesWithoutWriting) && batch.id.count == 2 {
            return Ok(Appended::Now);
        }
        let updated_at = batch.updated_at.filter(|_| !self.has(MakesRunsYounger));
        let batch = Batch { updated_at, ..batch };
        match Store::append(&self.inner, leases, batch.clone()).await {
            Err(error @ StoreError::Conflict { .. }) if self.has(AppendsInPart) => {
                let part = Batch { records: vec![batch.records[0].clone()], ..batch };
                let _ = Store::append(&self.inner, leases, part).await;
                Err(error)
            }
            Err(StoreError::Conflict { .. }) if self.has(AcceptsConflicts) => Ok(Appended::Now),
            Err(StoreError::Fenced { .. }) if self.has(AcceptsStaleTokens) => Ok(Appended::Now),
            Ok(Appended::Before) if self.has(AppliesAgain) => Ok(Appended::Now),
            answer => answer,
        }
    }

    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError> {
        if self.has(TakesTheLeaseToRead) {
            let reader = waypost_testing::records::holder("reader");
            // And keeps it: one that is dropped is given back.
            std::mem::forget(self.inner.acquire(run, &ScopePath::main(), &reader).await);
        }
        let mut found = self.inner.heads(run, page).await?;
        if self.has(SortsHeadsByName) {
            found.heads.sort_by_key(|head| head.record.header().scope.clone());
        }
        for head in &mut found.heads {
            if self.has(HidesDamage) {
                head.damaged.clear();
            }
            if self.has(GivesSeqsAgain) {
                head.next = head.record.header().seq + 1;
            }
        }
        Ok(found)
    }

    async fn load(&self, run: &RunId, scope: &ScopePath, seq: u64) -> Result<Record, StoreError> {
        match self.inner.load(run, scope, seq).await {
            Err(StoreError::Damaged { older: Some(older), .. }) if self.has(FallsBackSilently) => {
                self.inner.load(run, scope, older).await
            }
            Err(StoreError::Damaged { damage, .. }) if self.has(NamesTheWrongOlder) => {
                let older = Some(damage.seq - 1).filter(|seq| *seq > 0);
                Err(StoreError::Damaged { damage, older })
            }
            Ok(record) if self.has(DropsBodies) => Ok(record.without_body()),
            answer => answer,
        }
    }

    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError> {
        let mut scan = scan.clone();
        if self.has(IgnoresLabels) {
            scan.label = None;
        }
        let mut found = self.inner.scan(&scan).await?;
        if self.has(LosesTheEndOfPages) && found.next.is_some() && found.records.len() > 1 {
            found.records.pop();
        }
        Ok(found)
    }

    async fn runs(&self, query: &RunQuery) -> Result<Runs, StoreError> {
        let mut found = self.inner.runs(query).await?;
        if self.has(SortsRunsByClock) {
            found.runs.sort_by_key(|run| std::cmp::Reverse(run.created_at));
        }
        Ok(found)
    }

    async fn signal(&self, run: &RunId, signal: &Signal) -> Result<Signalled, StoreError> {
        let answer = self.inner.signal(run, signal).await?;
        if self.has(TakesSignalsTwice) && answer == Signalled::Before {
            let again = Signal { id: format!("{} again", signal.id), ..signal.clone() };
            return self.inner.signal(run, &again).await;
        }
        Ok(answer)
    }

    async fn signals(&self, run: &RunId) -> Result<Vec<Signal>, StoreError> {
        self.inner.signals(run).await
    }

    async fn quarantine(&self, lease: &Lease, damage: &Damage) -> Result<(), StoreError> {
        match self.inner.quarantine(lease, damage).await {
            Err(StoreError::Fenced { .. }) if self.has(LetsAnyoneQuarantine) => Ok(()),
            answer => answer,
        }
    }

    async fn trim(&self, lease: &Lease, keep: u32, mode: TrimMode) -> Result<Trimmed, StoreError> {
        let mode = if self.has(TrimsInADryRun) { TrimMode::Apply } else { mode };
        let keep = if self.has(KeepsOneTooFew) { keep.saturating_sub(1) } else { keep };
        let trimmed = self.inner.trim(lease, keep, mode).await?;
        if self.has(CountsFailures) && mode == TrimMode::Apply {
            self.inner.trim_by_age(lease.run(), keep.max(2) as usize);
        }
        Ok(trimmed)
    }

    async fn delete(&self, run: &RunId) -> Result<(), StoreError> {
        if self.has(DeletesWhatIsHeld) {
            self.inner.drop_holder(run);
        }
        self.inner.delete(run).await
    }

    async fn deletions(&self) -> Result<Vec<RunId>, StoreError> {
        self.inner.deletions().await
    }

    async fn inspect(&self, run: Option<&RunId>) -> Result<Vec<String>, StoreError> {
        self.inner.inspect(run).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        if self.has(StaysOpen) { Ok(()) } else { self.inner.close().await }
    }

    fn blobs(&self) -> &dyn Blobs {
        self
    }

    fn folder(&self, run: &RunId) -> Option<PathBuf> {
        self.inner.folder(run)
    }

    fn scopes_max(&self) -> Option<u64> {
        self.inner.scopes_max()
    }

    fn home(&self) -> Option<&Path> {
        self.inner.home()
    }
}

#[async_trait]
impl Blobs for Planted {
    async fn append(&self, lease: &Lease, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        match Blobs::append(&self.inner, lease, name, bytes).await {
            Err(StoreError::Fenced { .. }) if self.has(AppendsBlobsUnfenced) => Ok(()),
            Err(StoreError::Invalid(_)) if self.has(TakesAnyBlobName) => Ok(()),
            answer => answer,
        }
    }

    async fn sync(&self, lease: &Lease, name: &str) -> Result<(), StoreError> {
        Blobs::sync(&self.inner, lease, name).await
    }

    async fn read(&self, run: &RunId, name: &str, offset: u64) -> Result<Vec<u8>, StoreError> {
        let offset = if self.has(ReadsBlobsElsewhere) { offset.saturating_sub(1) } else { offset };
        Blobs::read(&self.inner, run, name, offset).await
    }

    fn log_folder(&self, run: &RunId) -> Option<PathBuf> {
        self.inner.log_folder(run)
    }
}
