//! `waypost verify`: checks every byte of a run against its digest, every record against its predecessor, and
//! the store's derived data.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use waypost::engine::{Engine, RunError, Snapshot, damaged_items};
use waypost::record::{Claim, Flaw, Header, Occasion, Pack, Reason, Record, Verdict};
use waypost::store::{Damage, RunQuery, Scan, ScanOrder, Store, StoreError, StoreExt as _};
use waypost::{CheckpointRef, Digest, RunId, ScopePath};

use super::Context;
use crate::cli::VerifyArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::time;
use crate::output::{Output, shown};
use crate::run::current_evidence;
use crate::run::definition::Chosen;
use crate::run::environment::refuse_missing_secrets;
use crate::run::reference::{Default, Reference, find};
use crate::run::run_status;
use crate::store_location::Access;
use crate::view::{
    ClaimView, EvidenceSummary, UnreadableRunView, VERSION, VerifiedRunView, VerifiedView, VerifyAllView,
    VerifyView, VoteView,
};

use quorum::Quorum;

pub(crate) mod quorum;

pub(crate) async fn verify(context: &Context, args: VerifyArgs) -> Result<Exit, Error> {
    let opened = context.store(None, if args.record { Access::Write } else { Access::Read });
    if args.all && matches!(opened, Err(Error::NoRuns { made: true, .. })) {
        return all_told(context, Vec::new(), Vec::new(), Vec::new());
    }
    let quorum = Quorum::of(&args)?;
    let store = opened?;
    if args.all {
        return verify_all(context, &store).await;
    }
    let reference = args.run.as_deref().map(Reference::parse).transpose()?;
    let (run, at) = match reference {
        Some(reference) => reference.locate(store.as_ref(), Default::Newest).await?,
        None => (find(store.as_ref(), None, Default::Newest).await?, None),
    };
    let at = at.map(|(scope, seq)| CheckpointRef { run: run.clone(), scope, seq });
    if let Some(every) = args.watch {
        return watch(context, &store, (&run, at.as_ref()), every).await;
    }
    let view = match quorum {
        None => look_at(&store, &run, at.as_ref()).await?,
        Some(quorum) => look_by(context, (&store, &run), at.as_ref(), quorum).await?,
    };
    let exit = exit_of(&view);
    let recorded = if args.record { record(&store, &run, &view).await? } else { None };
    if context.output.json {
        context.output.document(&VerifyView { v: VERSION, run: view, recorded })?;
        return Ok(exit);
    }
    context.output.checked(exit, &told(&context.output, &view))?;
    match recorded {
        Some(at) => context.output.note(&format!("Recorded as {at}.")),
        None if args.record => context.output.note("Nothing to record, because no evidence was checked."),
        None => {}
    }
    Ok(exit)
}

/// Records the verdicts; a damaged run must first be repaired by a resume.
async fn record(
    store: &Arc<dyn Store>,
    run: &RunId,
    view: &VerifiedRunView,
) -> Result<Option<String>, Error> {
    let claims: Vec<Claim> = view.checkpoints.iter().flat_map(|found| found.checked.clone()).collect();
    if claims.is_empty() {
        return Ok(None);
    }
    let snapshot = Snapshot::read(store.as_ref(), run).await?;
    // Findings may contain secrets, and a text with a secret is not recorded.
    refuse_missing_secrets(&Chosen::in_force(store.as_ref(), &snapshot)?.workflow)?;
    let at = Engine::new(Arc::clone(store)).record_verdicts(run, claims).await?;
    Ok(Some(at.to_string()))
}

/// Verifies a run, or a single checkpoint of it.
pub(super) async fn look_at(
    store: &Arc<dyn Store>,
    run: &RunId,
    at: Option<&CheckpointRef>,
) -> Result<VerifiedRunView, Error> {
    let mut view = verify_run(store.as_ref(), run).await?;
    check_evidence(store, run, &mut view).await?;
    reduce(store.as_ref(), &mut view, at).await?;
    Ok(view)
}

/// Verifies a run, or a single checkpoint of it, with votes about the evidence.
async fn look_by(
    context: &Context,
    (store, run): (&Arc<dyn Store>, &RunId),
    at: Option<&CheckpointRef>,
    quorum: Quorum,
) -> Result<VerifiedRunView, Error> {
    let mut view = verify_run(store.as_ref(), run).await?;
    let mut decided = quorum::decide(&quorum::answers(context, store, run, quorum).await?, quorum);
    for found in &mut view.checkpoints {
        if let Some((checked, votes)) = decided.remove(&found.reference) {
            found.take(checked);
            found.quorum = votes;
        }
    }
    reduce(store.as_ref(), &mut view, at).await?;
    Ok(view)
}

/// Reduces the result to one checkpoint, or adds the errors of the store.
async fn reduce(
    store: &dyn Store,
    view: &mut VerifiedRunView,
    at: Option<&CheckpointRef>,
) -> Result<(), Error> {
    if let Some(at) = at {
        return only(view, at);
    }
    view.errors.extend(store.inspect(None).await?);
    view.sound &= view.errors.is_empty();
    Ok(())
}

/// Verifies repeatedly until interrupted, and prints each changed result.
async fn watch(
    context: &Context,
    store: &Arc<dyn Store>,
    (run, at): (&RunId, Option<&CheckpointRef>),
    every: Duration,
) -> Result<Exit, Error> {
    let mut before = None;
    loop {
        let view = look_at(store, run, at).await?;
        let outcome = outcome_of(&view);
        if before.as_ref() != Some(&outcome) {
            if context.output.json {
                context.output.line(&VerifyView { v: VERSION, run: view, recorded: None })?;
            } else {
                let now = time::utc(context.now());
                context.output.answer(&format!("{now}  {}", told(&context.output, &view)))?;
            }
            before = Some(outcome);
        }
        tokio::time::sleep(every).await;
    }
}

/// Returns the comparable part of a result: errors, and the outcome of each claim.
fn outcome_of(view: &VerifiedRunView) -> (Vec<String>, Vec<CheckpointOutcome>) {
    let claim = |claim: &Claim| (claim.subject.clone(), claim.verdict, claim.found.clone());
    let checkpoint = |found: &VerifiedView| CheckpointOutcome {
        reference: found.reference.clone(),
        error: found.error.clone(),
        verdict: found.verdict,
        claims: found.checked.iter().map(claim).collect(),
    };
    (view.errors.clone(), view.checkpoints.iter().map(checkpoint).collect())
}

#[derive(Debug, PartialEq)]
struct CheckpointOutcome {
    reference: String,
    error: Option<String>,
    verdict: Option<Verdict>,
    claims: Vec<(String, Verdict, Value)>,
}

/// Returns the exit code for a run: damage outweighs failed evidence.
pub(super) fn exit_of(view: &VerifiedRunView) -> Exit {
    // Verdicts recorded by earlier checks say nothing about the present.
    let is_doubted = |checkpoint: &VerifiedView| {
        !checkpoint.checked.is_empty()
            && matches!(checkpoint.verdict, Some(Verdict::Failed | Verdict::Unknown))
    };
    match view.sound {
        false => Exit::Damaged,
        true if view.checkpoints.iter().any(is_doubted) => Exit::Evidence,
        true => Exit::Done,
    }
}

/// Checks the effective evidence of a run, if its workflow is readable, and replaces the recorded verdicts.
async fn check_evidence(
    store: &Arc<dyn Store>,
    run: &RunId,
    view: &mut VerifiedRunView,
) -> Result<(), Error> {
    // Its errors were already found.
    let Ok(snapshot) = Snapshot::read(store.as_ref(), run).await else { return Ok(()) };
    let Ok(chosen) = Chosen::in_force(store.as_ref(), &snapshot) else { return Ok(()) };
    let look = match current_evidence::look(store, &snapshot, &chosen, Occasion::Verify).await {
        // The damaged record was already reported.
        Err(Error::Run(RunError::Store(StoreError::Damaged { .. }))) => return Ok(()),
        look => look?,
    };
    for ((scope, seq), checked) in look.claims {
        let at = CheckpointRef { run: run.clone(), scope, seq }.to_string();
        let Some(found) = view.checkpoints.iter_mut().find(|found| found.reference == at) else { continue };
        found.take(checked);
    }
    Ok(())
}

async fn verify_all(context: &Context, shared: &Arc<dyn Store>) -> Result<Exit, Error> {
    let store = shared.as_ref();
    let mut runs = Vec::new();
    let mut newer = Vec::new();
    let mut errors = store.inspect(None).await?;
    let mut query = RunQuery::default();
    loop {
        let page = store.runs(&query).await?;
        let said = |error: &String, run: &RunId| error.starts_with(&format!("run {run} "));
        for found in page.damaged {
            let read = run_status::unlisted(store, &found.run).await;
            if let Err(Error::Store(error @ StoreError::Version { .. })) = read {
                newer.push(unverified(context, &found.run, &error)?);
            } else if !errors.iter().any(|error| said(error, &found.run)) {
                errors.push(format!("run {} cannot be listed: {}", found.run, found.why));
            }
        }
        for summary in &page.runs {
            let view = match verify_run(store, &summary.run).await {
                // Not damaged: a newer version can verify it. The other runs are not affected.
                Err(Error::Store(error @ StoreError::Version { .. })) => {
                    newer.push(unverified(context, &summary.run, &error)?);
                    continue;
                }
                view => view?,
            };
            let mut view = view;
            check_evidence(shared, &summary.run, &mut view).await?;
            if !context.output.json {
                context.output.checked(exit_of(&view), &told(&context.output, &view))?;
            }
            runs.push(view);
        }
        match page.next {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    all_told(context, runs, newer, errors)
}

/// Reports a run that only a newer version can verify.
fn unverified(context: &Context, run: &RunId, error: &StoreError) -> Result<UnreadableRunView, Error> {
    if !context.output.json {
        context.output.answer(&format!("{run}: not verified: {error}"))?;
    }
    Ok(UnreadableRunView { run: run.to_string(), store: None, error: error.to_string() })
}

fn all_told(
    context: &Context,
    runs: Vec<VerifiedRunView>,
    newer: Vec<UnreadableRunView>,
    errors: Vec<String>,
) -> Result<Exit, Error> {
    let exit = match errors.is_empty() && runs.iter().all(|run| run.sound) {
        false => Exit::Damaged,
        true if !newer.is_empty() => Exit::Newer,
        true if runs.iter().any(|run| exit_of(run) == Exit::Evidence) => Exit::Evidence,
        true => Exit::Done,
    };
    if runs.is_empty() && newer.is_empty() && errors.is_empty() {
        context.output.note("Nothing to verify, because the store has no runs.");
    }
    if context.output.json {
        let sound = matches!(exit, Exit::Done | Exit::Evidence);
        context.output.document(&VerifyAllView { v: VERSION, sound, errors, newer, runs })?;
    } else if !errors.is_empty() {
        let lines: String = errors.iter().map(|error| format!("\n  {error}")).collect();
        context.output.answer(&format!("the store: {}{lines}", context.output.paint.red("DAMAGED")))?;
    }
    Ok(exit)
}

/// Reduces the result to one checkpoint, without the run's other errors.
fn only(view: &mut VerifiedRunView, at: &CheckpointRef) -> Result<(), Error> {
    let name = at.to_string();
    view.checkpoints.retain(|checkpoint| checkpoint.reference == name);
    view.errors.clear();
    let Some(checkpoint) = view.checkpoints.first() else {
        let hint = format!("`waypost checkpoints {}` lists the checkpoints", at.run);
        return Err(Error::not_found(format!("checkpoint {name}"), hint));
    };
    view.sound = checkpoint.sound;
    Ok(())
}

/// Checks a run: its run record, every header and body, and the chain of each scope.
pub(super) async fn verify_run(store: &dyn Store, run: &RunId) -> Result<VerifiedRunView, Error> {
    let (root, mut errors) = match store.run(run).await {
        Ok(entry) => (Some(entry.record.digest()), Vec::new()),
        Err(StoreError::Damaged { damage, .. }) => {
            (None, vec![format!("the run record is damaged: {}", damage.flaw)])
        }
        Err(error) => return Err(error.into()),
    };
    let mut scopes: BTreeMap<ScopePath, Chain> = BTreeMap::new();
    let mut order: Vec<ScopePath> = Vec::new();
    let mut scan = Scan::of(run);
    loop {
        let page = store.scan(&scan).await?;
        for link in links(page.records, page.damaged) {
            let scope = link.scope().clone();
            let chain = scopes.entry(scope.clone()).or_insert_with(|| {
                order.push(scope);
                Chain::default()
            });
            chain.take(store, root, link).await?;
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => break,
        }
    }
    errors.extend(store.inspect(Some(run)).await?);
    // Its other errors were found above.
    if let Ok(snapshot) = Snapshot::read(store, run).await {
        if let Some(logged) = run_status::logged_and_lost(store, &snapshot).await {
            errors.push(format!("its event log names checkpoint {logged}, which is missing"));
        }
        if snapshot.is_overstated() && snapshot.damaged().next().is_none() {
            let status = snapshot.entry.summary.summary.status.name();
            errors.push(format!("status `{status}` in the store does not match the newest checkpoint"));
        }
    }
    if scopes.values().all(|chain| chain.checkpoints.is_empty()) {
        errors.push("the run has no checkpoints".to_owned());
    }
    let mut checkpoints = Vec::new();
    for scope in &order {
        // An ended scope has no open items, and the items of a damaged record are unknown.
        if let Some(Chain { over: false, broken: false, .. }) = scopes.get(scope)
            && let Ok(newest) = store.newest(run, scope).await
        {
            errors.extend(damaged_items(store, &newest).await?);
        }
    }
    for scope in order {
        let chain = scopes.remove(&scope).expect("every scope has a chain");
        let newest = chain.newest_without_state();
        let is_newest = match newest {
            Some(_) => is_newest(store, run, &scope, chain.last.map_or(0, |(seq, _)| seq)).await?,
            None => false,
        };
        checkpoints.extend(chain.finish(newest.filter(|_| is_newest)));
    }
    let sound = errors.is_empty() && checkpoints.iter().all(|checkpoint: &VerifiedView| checkpoint.sound);
    let names = crate::run::definition::names(store, run).await;
    Ok(VerifiedRunView { run: run.to_string(), sound, errors, checkpoints, names })
}

/// Returns whether a record is still the newest of its scope, as the run may be in progress.
async fn is_newest(store: &dyn Store, run: &RunId, scope: &ScopePath, seq: u64) -> Result<bool, Error> {
    let newest =
        Scan { scope: Some(scope.clone()), order: ScanOrder::NewestFirst, limit: 1, ..Scan::of(run) };
    let found = store.scan(&newest).await?;
    Ok(found.records.iter().all(|record| record.header().seq <= seq))
}

/// A link of a chain: a record with a sound header, or damage.
enum Link {
    Record(Box<Record>),
    Damage(Damage),
}

impl Link {
    fn scope(&self) -> &ScopePath {
        match self {
            Self::Record(record) => &record.header().scope,
            Self::Damage(damage) => &damage.scope,
        }
    }

    fn seq(&self) -> u64 {
        match self {
            Self::Record(record) => record.header().seq,
            Self::Damage(damage) => damage.seq,
        }
    }
}

/// Inserts damage among the records of a page.
fn links(records: Vec<Record>, damaged: Vec<Damage>) -> Vec<Link> {
    let mut links: Vec<Link> = records.into_iter().map(|record| Link::Record(Box::new(record))).collect();
    for damage in damaged {
        // After a record that also exists in a sound copy.
        let before = |link: &Link| *link.scope() == damage.scope && link.seq() <= damage.seq;
        let first = |link: &Link| *link.scope() == damage.scope;
        let place = links.iter().rposition(before).map(|place| place + 1);
        let place = place.or_else(|| links.iter().position(first)).unwrap_or(links.len());
        links.insert(place, Link::Damage(damage));
    }
    links
}

/// The state of a walk over a scope.
#[derive(Default)]
struct Chain {
    /// Seq and digest of the newest record with a sound header.
    last: Option<(u64, Digest)>,
    /// The newest record with a sound header ended the scope.
    over: bool,
    /// The previous record is damaged, so that the next link cannot be checked.
    broken: bool,
    checkpoints: Vec<VerifiedView>,
    /// Indexes of checkpoints whose state, named by their header, is dropped or lost.
    without_state: Vec<usize>,
}

impl Chain {
    async fn take(&mut self, store: &dyn Store, root: Option<Digest>, link: Link) -> Result<(), Error> {
        match link {
            Link::Damage(damage) => {
                let at = crate::run::reference::damaged_reference(&damage.run, &damage);
                self.broken = true;
                let error = match damage.flaw {
                    // A record missing in the middle is not named by others.
                    Flaw::Missing if damage.place.contains('/') => {
                        format!("{}: {}", damage.flaw, damage.place)
                    }
                    flaw => flaw.to_string(),
                };
                self.checkpoints.push(verified(at, Some(error), None));
            }
            Link::Record(record) => {
                let error = match self.misplaced(root, &record) {
                    Some(error) => Some(error),
                    None => self.body_error(store, &record).await?,
                };
                let header = record.header();
                self.checkpoints.push(verified(header.reference(), error, Some(header)));
                self.last = Some((header.seq, record.digest()));
                (self.broken, self.over) = (false, header.end.is_some());
            }
        }
        Ok(())
    }

    /// Returns how a record breaks the chain, if it does.
    fn misplaced(&self, root: Option<Digest>, record: &Record) -> Option<String> {
        let header = record.header();
        let repair = header.reason == Reason::Repair;
        if header.basis.is_some_and(|basis| basis >= header.seq) {
            return Some(format!("its basis @{} is not older", header.basis.unwrap_or_default()));
        }
        if let Some(recorded) = header.root
            && root.is_some_and(|root| root != recorded)
        {
            return Some(format!("its run record had digest {recorded}, and has another digest now"));
        }
        let Some((seq, digest)) = self.last else {
            let first = header.seq == 1 && header.prev.is_none();
            return (!first && !repair && !self.broken).then(|| "the records before are missing".to_owned());
        };
        // After damage was moved to quarantine, a repair links to the newest sound record before the gap.
        if header.prev != Some(digest) && (repair || !self.broken) {
            let prev = header.prev.map_or_else(|| "nothing".to_owned(), |prev| prev.to_string());
            return Some(format!("its prev is {prev}, but the record before has digest {digest}"));
        }
        let gap = header.seq != seq + 1;
        (gap && !repair && !self.broken).then(|| format!("the records from @{seq} to here are missing"))
    }

    async fn body_error(&mut self, store: &dyn Store, record: &Record) -> Result<Option<String>, Error> {
        let header = record.header();
        match store.load(&header.run, &header.scope, header.seq).await {
            Ok(loaded) if loaded.digest() != record.digest() => {
                Ok(Some("two reads returned different bytes".to_owned()))
            }
            Ok(loaded) => {
                if header.body.is_some() && loaded.body_bytes().is_none() {
                    self.without_state.push(self.checkpoints.len());
                }
                Ok(None)
            }
            Err(StoreError::Damaged { damage, .. }) => Ok(Some(damage.flaw.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the index of the newest checkpoint, if its state is missing.
    fn newest_without_state(&self) -> Option<usize> {
        self.checkpoints.len().checked_sub(1).filter(|newest| self.without_state.contains(newest))
    }

    /// Ends the walk. Retention never drops the newest state: `lost` is the index of the newest checkpoint,
    /// if its state is missing.
    fn finish(mut self, lost: Option<usize>) -> Vec<VerifiedView> {
        if let Some(lost) = lost {
            let checkpoint = &mut self.checkpoints[lost];
            checkpoint.sound = false;
            checkpoint.error = Some("the state is missing".to_owned());
        }
        self.checkpoints
    }
}

/// Returns the view of a checkpoint as written. The evidence of a step has no verdict until it is checked
/// now; a checkpoint with the verdicts of a check has them.
fn verified(at: CheckpointRef, error: Option<String>, header: Option<&Header>) -> VerifiedView {
    let pack = header.and_then(|header| header.evidence.as_ref());
    let found =
        header.zip(pack).map(|(header, pack)| (header.occasion(), pack.verdict_at(header.occasion())));
    let summary = EvidenceSummary::of(
        pack.iter().flat_map(|pack| &pack.claims).map(|claim| claim.verdict),
        found.is_some_and(|(_, verdict)| verdict == Verdict::Ok),
    );
    let kept = found.filter(|(occasion, _)| *occasion != Occasion::Commit);
    VerifiedView {
        reference: at.to_string(),
        sound: error.is_none(),
        error,
        verdict: summary.satisfied.map(|_| kept.map_or(Verdict::Skipped, |(_, verdict)| verdict)),
        summary,
        evidence: ClaimView::of_pack(pack),
        at_least: pack.and_then(|pack| pack.at_least),
        quorum: Vec::new(),
        checked: Vec::new(),
    }
}

/// Returns the failed claims, and the count of claims that hold.
fn evidence_text(output: &Output, view: &VerifiedRunView) -> String {
    let checked = view.checkpoints.iter().filter(|found| !found.checked.is_empty());
    let mut text = String::new();
    let mut holds = 0;
    for found in checked {
        holds += found.checked.iter().filter(|claim| claim.verdict == Verdict::Ok).count();
        for claim in found.checked.iter().filter(|claim| claim.verdict != Verdict::Ok) {
            let state = match claim.verdict {
                Verdict::Unknown => output.paint.yellow("evidence unknown"),
                _ if claim.counts() => output.paint.red("EVIDENCE FAILED"),
                _ => output.paint.yellow("evidence warns"),
            };
            let told = Pack::all([claim.clone()]).descriptions().join("; ");
            let reference = view.names.plain(&found.reference);
            text.push_str(&format!("\n  {reference}: {state}: {}", shown(&told)));
        }
    }
    if holds > 0 {
        let claims = if holds == 1 { "claim holds" } else { "claims hold" };
        text.push_str(&format!("\n  evidence: {holds} {claims}"));
    }
    for found in &view.checkpoints {
        let reference = view.names.plain(&found.reference);
        for claim in &found.quorum {
            text.push_str(&format!("\n  {reference}: {}: {}", shown(&claim.claim), claim.verdict.name()));
            claim.votes.iter().for_each(|vote| text.push_str(&format!("\n    {}", vote_text(vote))));
        }
    }
    text
}

fn vote_text(vote: &VoteView) -> String {
    let at = vote.checked_at.map(time::utc).unwrap_or_default();
    let found = if vote.found.is_null() { String::new() } else { format!(", found {}", vote.found) };
    let error = vote.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    shown(&format!("{:<8} {at}  {}{found}{error}", vote.verdict.name(), vote.by)).into_owned()
}

fn told(output: &Output, view: &VerifiedRunView) -> String {
    let total = view.checkpoints.len();
    let damaged: Vec<&VerifiedView> =
        view.checkpoints.iter().filter(|checkpoint| !checkpoint.sound).collect();
    if view.sound {
        let checkpoints = if total == 1 { "checkpoint" } else { "checkpoints" };
        let sound = format!("{}: {} ({total} {checkpoints} intact)", view.run, output.paint.green("sound"));
        return sound + &evidence_text(output, view);
    }
    let mut text = format!("{}: {}\n", view.run, output.paint.red("DAMAGED"));
    for error in &view.errors {
        text.push_str(&format!("  {}\n", view.names.plain(error)));
    }
    for checkpoint in &damaged {
        let error = checkpoint.error.as_deref().unwrap_or("the bytes differ from the digest");
        text.push_str(&format!("  {}: {error}\n", view.names.plain(&checkpoint.reference)));
    }
    text.push_str(&format!("  {} of {total} checkpoints are sound", total - damaged.len()));
    text
}
