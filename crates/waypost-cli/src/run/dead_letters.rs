//! Dead letters: finally failed items of a fan-out that continued.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use waypost::record::{End, Failure, FailureKind, FrontierEntry, Header, Phase, Reason, Record, SettledAs};
use waypost::store::{Scan, ScanOrder, Store, StoreExt as _};
use waypost::{RunId, ScopePath, StepId};
use waypost_workflow::file::{OnItemFailure, Workflow};
use waypost_workflow::program::{WorkflowState, log_name};

use crate::cli::DeadLetter;
use crate::error::Error;
use crate::run::definition::Chosen;
use crate::run::reference::is_scope;
use crate::view::step_names::{StepNames, path};
use waypost::engine::Snapshot;

/// Returns the dead letters of a run.
pub(crate) async fn letters_of(store: &dyn Store, run: &RunId) -> Result<Vec<DeadLetter>, Error> {
    letters(store, run, workflow_of(store, run).await?.as_ref()).await
}

/// Returns the workflow of a run; `None` for the run of a program.
async fn workflow_of(store: &dyn Store, run: &RunId) -> Result<Option<Workflow>, Error> {
    if is_of_program(store, run).await? {
        return Ok(None);
    }
    let snapshot = Snapshot::read(store, run).await?;
    Ok(Some(Chosen::in_force(store, &snapshot)?.workflow))
}

/// Returns the dead letters of a run, in order of scope. `workflow`: `None` for the run of a program.
///
/// Excludes letters of a fan-out abandoned by a rollback.
pub(crate) async fn letters(
    store: &dyn Store,
    run: &RunId,
    workflow: Option<&Workflow>,
) -> Result<Vec<DeadLetter>, Error> {
    let failed = ended_scopes(store, run, "failed", &has_failed).await?;
    let opened = if failed.is_empty() { Opened::default() } else { Opened::of(store.scopes(run).await?) };
    let mut fans = Fans::default();
    let mut letters = Vec::new();
    for scope in &failed {
        let Some(((each, key), above)) = scope.opened_by().zip(scope.parent()) else { continue };
        if !keeps_letters(workflow, &each) {
            continue;
        }
        let newest = store.newest(run, scope).await?;
        let cause = cause_of(store, run, (&failed, &opened), &newest).await?;
        // A failure caused by a nested dead letter is retried with this letter.
        let between = std::iter::successors(Some(cause.header().scope.clone()), ScopePath::parent);
        let mut between = between.take_while(|other| other != scope);
        if between.any(|other| other.opened_by().is_some_and(|(step, _)| keeps_letters(workflow, &step))) {
            continue;
        }
        if fans.counts(store, run, &newest, (above, each.clone())).await? {
            letters.extend(letter(&cause, &newest, (each, key)));
        }
    }
    Ok(letters)
}

/// Counts the dropped dead letters of the steps accepted by `is_meant`: items left as failed by a person.
pub(crate) async fn dropped(
    store: &dyn Store,
    run: &RunId,
    is_meant: &(dyn Fn(&ScopePath, &StepId) -> bool + Sync),
) -> Result<usize, Error> {
    let ended = ended_scopes(store, run, "skipped", &was_left).await?;
    count(store, run, ended, is_meant).await
}

/// Counts the failed items of a run skipped by the workflow's policy.
pub(crate) async fn skipped(
    store: &dyn Store,
    run: &RunId,
    workflow: Option<&Workflow>,
) -> Result<usize, Error> {
    let ended = ended_scopes(store, run, "failed", &has_failed).await?;
    count(store, run, ended, &|_, each| policy(workflow, each) == Some(OnItemFailure::Skip)).await
}

/// Returns whether a failure in a scope stops a step with items, by the workflow's policy.
pub(crate) fn stops(workflow: Option<&Workflow>, scope: &ScopePath) -> bool {
    let mut around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
    around.any(|scope| {
        scope.opened_by().is_some_and(|(each, _)| policy(workflow, &each) == Some(OnItemFailure::Stop))
    })
}

/// Returns whether `resume --retry-failed` retries a failure of a completed run: a dead letter, or a tolerated failure
/// of a step.
pub(crate) async fn can_retry(store: &dyn Store, run: &RunId) -> Result<bool, Error> {
    if !letters_of(store, run).await?.is_empty() {
        return Ok(true);
    }
    for scope in store.scopes(run).await? {
        let position = store.newest(run, &scope).await?.position().unwrap_or_default();
        if position.ledger.values().any(|settled| settled.how == SettledAs::Tolerated) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A tolerated failure in force.
pub(crate) struct ToleratedFailure {
    pub(crate) scope: ScopePath,
    pub(crate) step: StepId,
    /// The first line of the error.
    pub(crate) error: String,
}

/// Returns the tolerated failures of steps in force, in the order of scopes.
pub(crate) async fn tolerated(store: &dyn Store, run: &RunId) -> Result<Vec<ToleratedFailure>, Error> {
    let (mut found, mut on) = (Vec::new(), BTreeSet::new());
    let mut scan = Scan { phase: Some("failed"), ..Scan::of(run) };
    loop {
        let page = store.scan(&scan).await?;
        let headers = page.records.iter().map(Record::header);
        let is_tolerated = |header: &&Header| header.phase.failure().is_some_and(|failure| failure.tolerated);
        on.extend(headers.filter(is_tolerated).map(|header| header.scope.clone()));
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => break,
        }
    }
    for scope in on {
        let newest = store.newest(run, &scope).await?;
        let ledger = newest.position().unwrap_or_default().ledger;
        let failed: Vec<_> =
            ledger.iter().filter(|(_, settled)| settled.how == SettledAs::Tolerated).collect();
        if failed.is_empty() || !counts(store, run, &newest).await? {
            continue;
        }
        for (step, settled) in failed {
            let end = store.load(run, &scope, settled.seq).await?;
            let error = end.header().phase.failure().and_then(|failure| failure.error.first());
            let error = error.map_or("it failed", String::as_str).to_owned();
            found.push(ToleratedFailure { scope: scope.clone(), step: step.clone(), error });
        }
    }
    Ok(found)
}

/// Counts the scopes that are items in effect, for the steps accepted by `is_meant`.
async fn count(
    store: &dyn Store,
    run: &RunId,
    scopes: BTreeSet<ScopePath>,
    is_meant: &(dyn Fn(&ScopePath, &StepId) -> bool + Sync),
) -> Result<usize, Error> {
    let mut fans = Fans::default();
    let mut count = 0;
    for scope in scopes {
        let Some(((each, _), above)) = scope.opened_by().zip(scope.parent()) else { continue };
        if !is_meant(&above, &each) {
            continue;
        }
        let newest = store.newest(run, &scope).await?;
        count += usize::from(fans.counts(store, run, &newest, (above, each)).await?);
    }
    Ok(count)
}

/// Returns whether an ended scope, given its newest record, is in effect: its opener has joined the scope, in
/// any pass, or waits for the scope, and likewise for all ancestors.
pub(crate) async fn counts(store: &dyn Store, run: &RunId, newest: &Record) -> Result<bool, Error> {
    Fans::default().has(store, run, newest).await
}

fn has_failed(header: &Header) -> bool {
    header.end == Some(End::Failed)
}

fn was_left(header: &Header) -> bool {
    header.end == Some(End::Skipped) && header.reason == Reason::Manual
}

/// The fan-outs in effect, by scope and step, cached: open fan-outs, and the last joined fan-out, in each pass of a
/// loop.
#[derive(Debug, Default)]
pub(crate) struct Fans {
    opened: BTreeMap<(ScopePath, StepId), BTreeSet<u64>>,
}

impl Fans {
    /// As [`counts`].
    pub(crate) async fn has(
        &mut self,
        store: &dyn Store,
        run: &RunId,
        newest: &Record,
    ) -> Result<bool, Error> {
        let scope = &newest.header().scope;
        let Some((above, (opener, _))) = scope.parent().zip(scope.opened_by()) else { return Ok(true) };
        self.counts(store, run, newest, (above, opener)).await
    }

    /// Returns whether a scope is in effect, given its newest record: an open or the last joined fan-out of
    /// `fan` contains the scope, and likewise for all ancestors.
    async fn counts(
        &mut self,
        store: &dyn Store,
        run: &RunId,
        newest: &Record,
        mut fan: (ScopePath, StepId),
    ) -> Result<bool, Error> {
        let mut origin = newest.position().ok().and_then(|position| position.origin);
        loop {
            let opened = self.opened(store, run, &fan).await?;
            if !origin.is_some_and(|origin| opened.contains(&origin)) {
                return Ok(false);
            }
            let Some((parent, (step, _))) = fan.0.parent().zip(fan.0.opened_by()) else { return Ok(true) };
            origin = store.newest(run, &fan.0).await?.position().ok().and_then(|position| position.origin);
            fan = (parent, step);
        }
    }

    async fn opened(
        &mut self,
        store: &dyn Store,
        run: &RunId,
        fan: &(ScopePath, StepId),
    ) -> Result<&BTreeSet<u64>, Error> {
        let (scope, step) = fan;
        if !self.opened.contains_key(fan) {
            let newest = store.newest(run, scope).await?;
            let position = newest.position().unwrap_or_default();
            let entries = position
                .open_entries()
                .filter(|entry| entry.step == *step)
                .chain(position.started_before(step));
            let stands = entries.flat_map(FrontierEntry::fans);
            let mut opened = BTreeSet::new();
            for fan in stands.chain(position.joined(step)) {
                opened.extend(fan.passes.iter().map(|pass| pass.since).chain([fan.since]));
            }
            if opened.is_empty() && is_of_program(store, run).await? {
                opened.extend(newest_opening(store, &newest, step).await?);
            }
            self.opened.insert(fan.clone(), opened);
        }
        Ok(&self.opened[fan])
    }
}

async fn is_of_program(store: &dyn Store, run: &RunId) -> Result<bool, Error> {
    Ok(store.run(run).await?.record.record().definition.text.is_none())
}

/// Returns the seq of the newest opening of a fan-out that no rollback undid: the position of a program without evidence
/// does not keep joined fan-outs.
async fn newest_opening(store: &dyn Store, newest: &Record, step: &StepId) -> Result<Option<u64>, Error> {
    let Header { run, scope, seq, .. } = newest.header();
    let history = store.effective_history(run, scope, *seq).await?;
    let mut headers = history.records.iter().map(Record::header);
    let opens = |header: &&Header| header.reason == Reason::Fork && header.step.as_ref() == Some(step);
    Ok(headers.rfind(opens).map(|header| header.seq))
}

/// Returns the scopes ended in this phase with a newest record that satisfies `is`.
async fn ended_scopes(
    store: &dyn Store,
    run: &RunId,
    phase: &'static str,
    is: &(dyn Fn(&Header) -> bool + Sync),
) -> Result<BTreeSet<ScopePath>, Error> {
    let mut scan = Scan { phase: Some(phase), ..Scan::of(run) };
    let mut found = BTreeSet::new();
    loop {
        let page = store.scan(&scan).await?;
        let ended = page.records.iter().map(Record::header).filter(|header| is(header));
        found.extend(ended.map(|header| header.scope.clone()).filter(|scope| !scope.is_main()));
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => break,
        }
    }
    let mut still = BTreeSet::new();
    for scope in found {
        let newest =
            Scan { scope: Some(scope.clone()), order: ScanOrder::NewestFirst, limit: 1, ..Scan::of(run) };
        let newest = store.scan(&newest).await?;
        if newest.records.first().is_some_and(|record| is(record.header())) {
            still.insert(scope);
        }
    }
    Ok(still)
}

/// Returns whether failed items of a step are dead letters.
pub(crate) fn keeps_letters(workflow: Option<&Workflow>, each: &StepId) -> bool {
    policy(workflow, each) == Some(OnItemFailure::DeadLetter)
}

/// Returns the policy for failed items of a step, if the step has items. In the run of a program, a scope fails for good
/// only if the join collects failures.
fn policy(workflow: Option<&Workflow>, each: &StepId) -> Option<OnItemFailure> {
    let Some(workflow) = workflow else { return Some(OnItemFailure::DeadLetter) };
    Some(workflow.step(each.as_str())?.work.foreach()?.on_failure)
}

/// Scopes by their parent, sorted.
#[derive(Debug, Default)]
struct Opened(BTreeMap<ScopePath, Vec<ScopePath>>);

impl Opened {
    fn of(scopes: impl IntoIterator<Item = ScopePath>) -> Self {
        let mut opened: BTreeMap<ScopePath, Vec<ScopePath>> = BTreeMap::new();
        for scope in scopes {
            if let Some(above) = scope.parent() {
                opened.entry(above).or_default().push(scope);
            }
        }
        opened.values_mut().for_each(|scopes| scopes.sort_unstable());
        Self(opened)
    }

    /// Returns the scopes opened by the step of this record.
    fn by(&self, header: &Header) -> Vec<&ScopePath> {
        let opened = self.0.get(&header.scope).into_iter().flatten();
        opened.filter(|scope| scope.opened_by().map(|(step, _)| step) == header.step).collect()
    }
}

/// Returns the record of an item's causal failure, given the item's last record.
pub(crate) async fn cause(store: &dyn Store, run: &RunId, newest: &Record) -> Result<Record, Error> {
    let opened = Opened::of(store.scopes(run).await?);
    if opened.by(newest.header()).is_empty() {
        return Ok(newest.clone());
    }
    let failed = ended_scopes(store, run, "failed", &has_failed).await?;
    cause_of(store, run, (&failed, &opened), newest).await
}

/// As [`cause`]; the cause may lie in a scope opened by the failed step.
async fn cause_of(
    store: &dyn Store,
    run: &RunId,
    (failed, opened): (&BTreeSet<ScopePath>, &Opened),
    newest: &Record,
) -> Result<Record, Error> {
    let mut cause = newest.clone();
    loop {
        let below = opened.by(cause.header());
        cause = match below.iter().find(|scope| failed.contains(**scope)) {
            Some(below) => store.newest(run, below).await?,
            None => match first_to_fail(store, run, &below).await? {
                Some(below) => below,
                None => return Ok(cause),
            },
        };
    }
}

/// Returns the record of the failure for which all these scopes of a step were stopped. The failed scope
/// ended with the others, after this record.
async fn first_to_fail(
    store: &dyn Store,
    run: &RunId,
    opened: &[&ScopePath],
) -> Result<Option<Record>, Error> {
    for scope in opened.iter().copied() {
        let end = store.newest(run, scope).await?.header().end;
        if !matches!(end, Some(End::Cancelled | End::Failed)) {
            continue;
        }
        let (phase, order) = (Some("failed"), ScanOrder::NewestFirst);
        let scan = Scan { scope: Some(scope.clone()), phase, order, limit: 1, ..Scan::of(run) };
        let found = store.scan(&scan).await?.records.into_iter().next();
        let by_itself = |record: &Record| {
            record.header().phase.failure().is_some_and(|failure| !failure.retried && !failure.tolerated)
        };
        if let Some(record) = found.filter(by_itself) {
            return Ok(Some(record));
        }
    }
    Ok(None)
}

/// Returns the seq at which a step last opened scopes in effect.
pub(crate) async fn opened_at(
    store: &dyn Store,
    run: &RunId,
    scope: &ScopePath,
    each: &StepId,
) -> Result<Option<u64>, Error> {
    let newest = store.newest(run, scope).await?.header().seq;
    let opens = |record: &Record| {
        let header = record.header();
        header.step.as_ref() == Some(each) && header.phase.opens_work()
    };
    match store.find_back(run, scope, newest, &opens).await? {
        Some(found) => Ok(Some(store.carrier(found.header()).await?)),
        None => Ok(None),
    }
}

/// Returns the path of the failed step of a dead letter, or of its item.
pub(crate) fn place(letter: &DeadLetter, names: &StepNames) -> String {
    match &letter.step {
        Some(step) => names.called(&letter.failed_on, step.as_str()),
        None => names.path(&letter.scope),
    }
}

/// Returns the index and the value of an item in the state of its scope: of a workflow, or of a graph in a program.
fn item_in(state: &[u8]) -> Option<(u64, Value)> {
    if let Ok(state) = serde_json::from_slice::<WorkflowState>(state) {
        return Some((state.item_index().unwrap_or_default(), state.item().cloned().unwrap_or_default()));
    }
    let mut state: Value = serde_json::from_slice(state).ok()?;
    Some((state.get("index")?.as_u64()?, state.get_mut("item")?.take()))
}

fn letter(failed: &Record, item: &Record, (each, key): (StepId, String)) -> Option<DeadLetter> {
    let header = failed.header();
    let (index, value) = item_in(item.state_bytes()?)?;
    let failure = match &header.phase {
        Phase::Failed(failure) => failure.clone(),
        _ => Failure::new(FailureKind::Error, vec!["the item failed without an error text".to_owned()]),
    };
    let has_log = failure.ending.log.is_some();
    Some(DeadLetter {
        log: header.step.as_ref().filter(|_| has_log).map(|step| log_name(&header.scope, step, &header.at)),
        scope: item.header().scope.clone(),
        failed_on: header.scope.clone(),
        each,
        key,
        index,
        item: value,
        step: header.step.clone(),
        attempts: header.at.attempt,
        failure,
    })
}

/// Selects the dead letters of a run with these keys or scopes; all without keys.
///
/// # Errors
/// A key is unknown, or ambiguous: equal keys of different steps are distinguished by their scopes.
pub(crate) async fn chosen(
    store: &dyn Store,
    run: &RunId,
    keys: &[String],
) -> Result<Vec<DeadLetter>, Error> {
    let workflow = workflow_of(store, run).await?;
    let letters = letters(store, run, workflow.as_ref()).await?;
    let is = |letter: &DeadLetter, key: &String| letter.key == *key || is_scope(&letter.scope, key);
    if let Some(key) = keys.iter().find(|key| !letters.iter().any(|letter| is(letter, key))) {
        return Err(Error::not_found(
            format!("dead letter `{key}` in run {run}"),
            format!("`waypost dead-letters list {run}` lists the dead letters"),
        ));
    }
    for key in keys {
        let found: Vec<&DeadLetter> = letters.iter().filter(|letter| is(letter, key)).collect();
        if found.len() > 1 {
            let scopes = found.iter().map(|letter| path(workflow.as_ref(), &letter.scope));
            let scopes: Vec<String> = scopes.collect();
            return Err(Error::usage(
                format!("`{key}` matches several dead letters of run {run}: {}", scopes.join(", ")),
                format!("name the scope instead of the key: `{}`", scopes[0]),
            ));
        }
    }
    let wanted = |letter: &DeadLetter| keys.is_empty() || keys.iter().any(|key| is(letter, key));
    Ok(letters.into_iter().filter(wanted).collect())
}
