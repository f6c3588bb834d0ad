//! Trust in finished steps: the claims in force, their verdicts, and the steps whose evidence fails.
//!
//! ```text
//!   scopes in force --> claims --(verifier)--> verdicts --> plan --> questions, and steps with failed evidence
//! ```
//!
//! Reads and verifies only; writes nothing. [`reruns`](super::reruns) selects the steps to rerun.
//! [`PendingClaims`] are the claims that a session verifies again before the run ends. [`conflicts`] finds steps
//! that invalidate the evidence of each other: reruns would alternate without end, so a person is asked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::evidence::{ARTIFACT_EXISTS, FILE_SHA256, Site, other_names};
use crate::id::{RunId, ScopePath, StepId};
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::plan::{
    Action, Broken, Cause, Check, ClaimKey, ClaimOfEnd, Decision, DeferredClaims, Due, Effective, Verdicts,
    Weighed, checks, claims_of_ends, due, has_writers, is_under_way, plan,
};
use crate::record::{
    Claim, Ending, Header, Occasion, Pack, Phase, Position, Record, RunRecord, Settled, Verdict,
};
use crate::store::{Scan, ScanOrder, Store, StoreError, StoreExt as _};

use super::begin::decode_state;
use super::reruns::{Target, broken_by};
use crate::engine::inspect::effective_of;
use crate::engine::scope::child_ends::is_end;
use crate::engine::time_travel::source_scopes::SourceScope;
use crate::engine::walk::in_place::Declarers;
use crate::engine::{Answers, Engine, OnUnknown, Program, RunError, StepRef, TreatAs};

/// A scope in force, with the record and the position to continue from.
#[derive(Debug, Clone)]
pub(crate) struct ScopeInForce {
    pub(crate) record: Record,
    pub(crate) position: Position,
    /// The finished joins, each with the record of the joined fan-out.
    pub(crate) joined: HashMap<StepId, u64>,
}

/// The scopes in force, parents first.
pub(crate) type ScopesInForce = BTreeMap<(usize, ScopePath), ScopeInForce>;

/// Verified claims, by scope and record.
pub(crate) type FoundClaims = HashMap<(ScopePath, u64), Vec<Claim>>;

/// The verification of the finished steps of a run: their verdicts, weighed by the plan.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// Questions to a person.
    pub(crate) questions: Vec<Decision>,
    /// Finished steps with failed evidence that may rerun.
    pub(crate) broken: Vec<Broken>,
    /// Finished non-idempotent steps with failed evidence: a person is asked.
    pub(crate) broken_careful: Vec<Broken>,
    /// The verified claims with their current values, by scope and record.
    pub(crate) found: FoundClaims,
    /// The claims not verified yet: a running step may rewrite the claimed files.
    pub(crate) deferred: DeferredClaims,
    /// The claims of ends about files.
    pub(crate) declarers: Declarers,
}

/// How a resume treats the evidence of finished steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Verify the evidence.
    Checked(OnUnknown),
    /// Skip the checks: nothing runs, a person has decided, or the same resume has checked before.
    Unchecked,
}

/// The options of [`judge`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct JudgeOptions<'a> {
    pub(crate) trust: Trust,
    /// Steps with failed evidence, found by the session before.
    pub(crate) broken_declarers: &'a [Broken],
    /// A step to rerun on request: its evidence is not read, since its record may be damaged.
    pub(crate) named: Option<&'a (ScopePath, StepId)>,
}

impl From<Trust> for JudgeOptions<'_> {
    fn from(trust: Trust) -> Self {
        Self { trust, broken_declarers: &[], named: None }
    }
}

/// A child in force.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChildInForce {
    /// The record of the parent that opened the child.
    pub(crate) origin: u64,
    /// True if the parent has joined the child and no longer waits.
    pub(crate) is_joined: bool,
}

/// Returns whether a scope has a step of this name.
pub(crate) fn is_step_on(shape: &Shape, scope: &ScopePath, step: &StepId) -> bool {
    shape.of_scope(scope).is_some_and(|shape| shape.place(step.as_str()).is_some())
}

/// Returns the child of this name if in force: its parent waits for the fan-out of the child or has joined the
/// fan-out. `None` for a child without evidence, unless `is_named`.
pub(crate) fn child_in_force(
    shape: &Shape,
    scopes: &ScopesInForce,
    name: &ScopePath,
    is_named: bool,
) -> Option<ChildInForce> {
    let parent = name.parent()?;
    let above = scopes.get(&(parent.depth(), parent.clone()))?;
    let parent = shape.of_scope(&parent)?;
    let step = &parent.steps()[parent.opener(&name.opened_by()?.0)?];
    let (_, children) = parent.children_named(&name.opened_by()?.0)?;
    if !children.shape.has_evidence() && !is_named {
        return None;
    }
    let waited = above.position.frontier.iter().find(|entry| entry.step == step.id);
    if children.passes {
        let open_fan = waited.and_then(|entry| entry.fan.as_ref());
        let fan = open_fan.or_else(|| above.position.joined(&step.id))?;
        let pass = name.opened_by()?.1.parse().ok()?;
        let is_joined = open_fan.is_none() || pass < fan.pass;
        return fan.of_pass(pass).map(|fan| ChildInForce { origin: fan.since, is_joined });
    }
    // The evidence of hooks is not verified after their end.
    if step.are_hooks(&children.name) {
        let hooks = waited.and_then(|entry| entry.hooks.as_ref())?;
        return Some(ChildInForce { origin: hooks.since, is_joined: false });
    }
    match waited.and_then(|entry| Some((entry.fan.as_ref()?, entry.hooks.is_some()))) {
        // While the hooks of the step are open, the scopes of its work are joined.
        Some((work, is_joined)) => Some(ChildInForce { origin: work.since, is_joined }),
        None => above.joined.get(&step.id).map(|since| ChildInForce { origin: *since, is_joined: true }),
    }
}

/// Returns the last end of a scope before later records; `None` if the end is damaged.
pub(crate) async fn end_before(store: &dyn Store, newest: &Header) -> Result<Option<Record>, StoreError> {
    let order = ScanOrder::NewestFirst;
    let mut scan = Scan { scope: Some(newest.scope.clone()), order, ..Scan::of(&newest.run) };
    loop {
        let page = store.scan(&scan).await?;
        let mut headers = page.records.iter().map(Record::header);
        if let Some(end) = headers.find(|header| header.end.is_some()) {
            return match store.load(&end.run, &end.scope, end.seq).await {
                Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => Ok(None),
                record => record.map(Some),
            };
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(None),
        }
    }
}

/// Returns the finished joins of a scope with evidence below, and the finished joins in `also`.
pub(crate) async fn joined_on(
    store: &dyn Store,
    shape: &Shape,
    (header, position): (&Header, &Position),
    also: &BTreeSet<&StepId>,
) -> Result<HashMap<StepId, u64>, StoreError> {
    let mut joined = HashMap::new();
    let Some(own) = shape.of_scope(&header.scope) else { return Ok(joined) };
    let unfinished = Unfinished::of(own, position);
    let is_looked_at = |step: &Step| step.opens_evidence() || also.contains(&step.id);
    for (place, step) in own.steps().iter().enumerate().filter(|(_, step)| is_looked_at(step)) {
        // Also a join that did not run again, because all scopes had equal results.
        if let Some(fan) = position.joined(&step.id).filter(|_| !unfinished.has(place)) {
            joined.insert(step.id.clone(), fan.since);
            continue;
        }
        let Some(settled) = position.ledger.get(&step.id) else { continue };
        let made = store.load(&header.run, &header.scope, settled.seq).await?;
        joined.extend(made.header().about.map(|since| (step.id.clone(), since)));
    }
    for step in also {
        if joined.contains_key(*step) {
            continue;
        }
        let Some(ended) = ended_on(store, shape, (header, position), step).await? else { continue };
        let opens = |record: &Record| {
            record.header().step.as_ref() == Some(*step) && record.header().phase.opens_work()
        };
        let opened = store.find_back(&header.run, &header.scope, ended.header().seq, &opens).await?;
        let since = match opened {
            Some(opened) => Some(store.carrier(opened.header()).await?),
            None => fan_out_before_fork(store, ended.header(), step).await?,
        };
        joined.extend(since.map(|since| ((*step).clone(), since)));
    }
    Ok(joined)
}

/// Returns the seq of the record that opened a fan-out. The scopes were open at the fork of the run, and joined after the
/// fork. The start record of the join has the position with the fan-out.
async fn fan_out_before_fork(
    store: &dyn Store,
    joined: &Header,
    step: &StepId,
) -> Result<Option<u64>, StoreError> {
    let starts = |record: &Record| record.header().started.iter().any(|start| start.step == *step);
    let Some(start) = store.find_back(&joined.run, &joined.scope, joined.seq, &starts).await? else {
        return Ok(None);
    };
    let start = store.load(&joined.run, &joined.scope, start.header().seq).await?;
    let position = start.position().unwrap_or_default();
    let entry = position.frontier.iter().find(|entry| entry.step == *step);
    Ok(entry.and_then(|entry| Some(entry.fan.as_ref()?.since)))
}

/// Returns the seq of the end of a finished step of a scope, also of a damaged end.
pub(crate) async fn ended_at(
    store: &dyn Store,
    shape: &Shape,
    (header, position): (&Header, &Position),
    step: &StepId,
) -> Result<Option<u64>, StoreError> {
    let seq = position.ledger.get(step).map(|settled| settled.seq);
    match seq {
        Some(seq) if store.load(&header.run, &header.scope, seq).await.is_err_and(is_damage) => Ok(Some(seq)),
        _ => Ok(ended_on(store, shape, (header, position), step).await?.map(|end| end.header().seq)),
    }
}

fn is_damage(error: StoreError) -> bool {
    matches!(error, StoreError::Damaged { .. })
}

/// Returns the end of a finished step of a scope. The ledger of a graph without evidence omits ends: then the
/// end is the newest one in the history. A reentered scope has ends from before its first record: only the ledger
/// names these.
pub(crate) async fn ended_on(
    store: &dyn Store,
    shape: &Shape,
    (header, position): (&Header, &Position),
    step: &StepId,
) -> Result<Option<Record>, StoreError> {
    let is_open = shape.of_scope(&header.scope).is_none_or(|shape| {
        let place = shape.place(step.as_str());
        place.is_none_or(|place| Unfinished::of(shape, position).has(place))
    });
    if is_open {
        return Ok(None);
    }
    if let Some(settled) = position.ledger.get(step) {
        match store.load(&header.run, &header.scope, settled.seq).await {
            Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => {}
            record => return record.map(Some),
        }
    }
    let ends = |record: &Record| is_end(record.header()) && record.header().step.as_ref() == Some(step);
    store.find_back(&header.run, &header.scope, header.seq, &ends).await
}

/// Returns the last end of a failed or interrupted step of a scope.
pub(crate) async fn failed_on(
    store: &dyn Store,
    (header, position): (&Header, &Position),
    step: &StepId,
) -> Result<Option<Record>, StoreError> {
    if !position.open_entries().any(|entry| entry.step == *step) {
        return Ok(None);
    }
    let fails = |record: &Record| {
        let failed = matches!(record.header().phase, Phase::Failed(_) | Phase::Interrupted { .. });
        failed && record.header().step.as_ref() == Some(step)
    };
    store.find_back(&header.run, &header.scope, header.seq, &fails).await
}

/// Verifies the finished steps of scopes. Returns the questions to a person, and the steps with failed evidence.
///
pub(crate) async fn judge<P: Program>(
    engine: &Engine,
    program: &P,
    shape: &Shape,
    (run, scopes): (&RunRecord, &ScopesInForce),
    JudgeOptions { trust, broken_declarers, named }: JudgeOptions<'_>,
) -> Result<Judgement, RunError> {
    let store = engine.store.as_ref();
    let mut effective = Vec::new();
    for known in scopes.values() {
        let mut position = known.position.clone();
        let named = named.filter(|(scope, _)| *scope == known.record.header().scope);
        let unread = named.and_then(|(_, step)| Some((step.clone(), position.ledger.remove(step)?)));
        let found = effective_of(store, shape, (&known.record, &position)).await;
        let mut found = found.map_err(|error| evidence_lost(known, error))?;
        if let Some((step, end)) = unread {
            found.position.ledger.insert(step, end);
        }
        found.in_flux.extend(in_flux(program, scopes, known));
        effective.push(found);
    }
    if trust != Trust::Unchecked {
        forget_other_names(engine, run, &mut effective).await;
    }
    let mut declarers = Declarers::default();
    if !shape.is_routed() {
        let claims = claims_of_ends(shape, &effective).into_iter();
        claims.for_each(|ClaimOfEnd { check, in_force }| declarers.note(check, in_force));
    }
    if trust != Trust::Unchecked {
        drop_if_all_holds(engine, shape, run, &mut effective).await;
    }
    let Due { checks, deferred } = due(shape, &effective, Occasion::Resume);
    let (verdicts, found) = match trust {
        Trust::Checked(on_unknown) => verify(engine, program, run, &checks, on_unknown).await?,
        Trust::Unchecked => (assumed_ok(&checks), HashMap::new()),
    };
    let weighed = Weighed::of(shape, &effective, &verdicts, &checks);
    // `open_scopes` asks about the interrupted steps of other scopes.
    let ours = |decision: &Decision| {
        let is_of_step =
            decision.cause.is_of_one_try() || matches!(decision.cause, Cause::Undone | Cause::Begun);
        decision.scope.is_main() || !is_of_step
    };
    let mut questions = weighed.questions(engine.clock.now());
    questions.retain(ours);
    questions.iter_mut().for_each(|question| say_why(question, &found));
    let mut asked = Vec::new();
    let is_asked = |broken: &Broken| {
        let mut questions = questions.iter();
        questions.any(|asked| asked.scope == broken.scope && asked.step == broken.step)
    };
    let may_run = |broken: &Broken| {
        let step = shape.of_scope(&broken.scope).and_then(|shape| shape.step(broken.step.as_str()));
        step.is_some_and(|step| step.idempotent) && !is_asked(broken)
    };
    let mut broken = weighed.broken();
    let is_new = |declarer: &&Broken| {
        !broken.iter().any(|known| (&known.scope, &known.step) == (&declarer.scope, &declarer.step))
    };
    let new: Vec<Broken> = broken_declarers.iter().filter(is_new).cloned().collect();
    broken.extend(new);
    let (broken, broken_careful): (Vec<Broken>, Vec<Broken>) = broken.into_iter().partition(may_run);
    for careful in broken_careful.iter().filter(|careful| !is_asked(careful)) {
        let (scope, step) = (careful.scope.clone(), careful.step.clone());
        let cause = Cause::EvidenceFailed(careful.claims.clone());
        asked.push(Decision { scope, step, action: Action::Ask, cause });
    }
    questions.append(&mut asked);
    Ok(Judgement { questions, broken, broken_careful, found, deferred, declarers })
}

/// Drops the evidence of all ends if every claim holds at a glance: then no claim needs a verdict or supersedes another
/// claim. In all other cases, the evidence stays for a full check.
async fn drop_if_all_holds(engine: &Engine, shape: &Shape, run: &RunRecord, effective: &mut [Effective]) {
    let is_of_ends = |scope: &Effective| {
        let mut ends = scope.position.ledger.keys();
        let is_end = |step: &StepId| ends.any(|end| end == step);
        scope.passes.is_empty() && scope.reusable.is_empty() && scope.evidence.keys().all(is_end)
    };
    if !effective.iter().all(is_of_ends) || has_writers(shape, effective) {
        return;
    }
    let evidence = effective.iter_mut().map(|scope| std::mem::take(&mut scope.evidence)).collect::<Vec<_>>();
    let counts: Vec<usize> = evidence.iter().map(BTreeMap::len).collect();
    let (steps, packs): (Vec<StepId>, Vec<Pack>) = evidence.into_iter().flatten().unzip();
    let is_due = |claim: &Claim| claim.is_due(Occasion::Resume) && claim.verdict == Verdict::Ok;
    let are_due = packs.iter().flat_map(|pack| &pack.claims).all(is_due);
    let packs = Arc::new(packs);
    if are_due && engine.verifier.all_hold_at_a_glance(&packs, &engine.site(run)).await {
        return;
    }
    let mut evidence = steps.into_iter().zip(Arc::unwrap_or_clone(packs));
    for (scope, count) in effective.iter_mut().zip(counts) {
        scope.evidence = evidence.by_ref().take(count).collect();
    }
}

/// Returns the error for damaged evidence, with the step of the damaged record.
fn evidence_lost(known: &ScopeInForce, error: StoreError) -> RunError {
    let StoreError::Damaged { damage, .. } = &error else { return error.into() };
    let scope = &known.record.header().scope;
    let is_of = |(_, settled): &(&StepId, &Settled)| damage.scope == *scope && settled.seq == damage.seq;
    let Some((step, _)) = known.position.ledger.iter().find(is_of) else { return error.into() };
    let (run, scope, step) = (damage.run.clone(), scope.clone(), step.clone());
    RunError::EvidenceLost { run, scope, step, source: error }
}

/// Adds the error of an unchecked claim to a question.
pub(crate) fn say_why(question: &mut Decision, found: &FoundClaims) {
    let Cause::EvidenceUnknown(names) = &mut question.cause else { return };
    let ours = found.iter().filter(|((scope, _), _)| *scope == question.scope);
    let unknown = |claim: &&Claim| claim.verdict == Verdict::Unknown;
    let claims: Vec<&Claim> = ours.flat_map(|(_, claims)| claims.iter().filter(unknown)).collect();
    for name in names {
        let claim = claims.iter().find(|claim| claim.title() == *name);
        if let Some(why) = claim.and_then(|claim| claim.error.as_ref()) {
            name.push_str(&format!(" ({why})"));
        }
    }
}

/// Verifies the finished steps of scopes of another run by their records. Returns the steps with failed or unknown
/// evidence. These steps cannot rerun in the new run: their inputs are unknown.
pub(crate) async fn doubted(
    engine: &Engine,
    shape: &Shape,
    run: &RunRecord,
    scopes: &[&SourceScope],
) -> Vec<Decision> {
    let records = scopes.iter().flat_map(|scope| scope.settled.iter().map(|made| (scope.path(), made)));
    let records: HashMap<_, _> =
        records.map(|(path, made)| ((path, made.header().seq), made.header())).collect();
    let effective = |scope: &&SourceScope| {
        let (path, position) = (scope.path(), &scope.position);
        let made = |(step, known): (&StepId, &Settled)| {
            Some((step.clone(), records.get(&(path, known.seq))?.evidence.clone()?))
        };
        Effective {
            scope: path.clone(),
            seq: 0,
            lost: 0,
            position: Position { frontier: Vec::new(), ..position.clone() },
            evidence: position.ledger.iter().filter_map(made).collect(),
            reusable: BTreeMap::new(),
            passes: BTreeMap::new(),
            in_flux: Default::default(),
            stopped_by: None,
            rolled_back: None,
        }
    };
    let effective: Vec<Effective> = scopes.iter().map(effective).collect();
    let checks = checks(shape, &effective);
    let site = engine.site(run);
    let with_code = |check: &Check| {
        let made = check.seq.and_then(|seq| records.get(&(&check.scope, seq)));
        let ending = made.and_then(|made| ending_of(made));
        (check.claim.clone(), site.clone().with_exit_code(ending.and_then(|ending| ending.exit_code)))
    };
    let claims: Vec<_> = checks.iter().map(with_code).collect();
    let checked = engine.verifier.verify_all(&claims).await;
    let verdicts = checks.into_iter().zip(checked);
    let verdicts: Verdicts =
        verdicts.map(|(check, claim)| ((check.scope, check.step, check.index), claim.verdict)).collect();
    let planned = plan(shape, &effective, &verdicts, engine.clock.now());
    let doubted =
        |decision: &Decision| matches!(decision.cause, Cause::EvidenceFailed(_) | Cause::EvidenceUnknown(_));
    let asked = |decision| Decision { action: Action::Ask, ..decision };
    planned.decisions.into_iter().filter(doubted).map(asked).collect()
}

/// Binds a claim to its path instead of its recorded file, if the path no longer leads to that file: a link put
/// in the place of a file does not change the claimed subject.
pub(crate) async fn forget_other_names(engine: &Engine, run: &RunRecord, effective: &mut [Effective]) {
    let packs = effective.iter_mut().flat_map(|scope| {
        let earlier = scope.passes.values_mut().flatten().map(|(_, pack)| pack);
        scope.evidence.values_mut().chain(earlier)
    });
    let claims = packs.flat_map(|pack| &mut pack.claims);
    let named: Vec<&mut Claim> = claims.filter(|claim| claim.file.is_some()).collect();
    if named.is_empty() {
        return;
    }
    let subjects = named.iter().map(|claim| claim.subject.clone()).collect();
    let names = other_names(subjects, &engine.site(run), engine.verifier.deadline()).await;
    for (claim, name) in named.into_iter().zip(names) {
        if claim.file != name {
            claim.file = None;
        }
    }
}

/// Decodes the state of a scope, with the parts from its parents.
pub(crate) fn state_of<P: Program>(
    program: &P,
    root: &Shape,
    scopes: &ScopesInForce,
    record: &Record,
) -> Result<P::State, RunError> {
    let scope = &record.header().scope;
    let level = root.of_scope(scope).map_or(0, Shape::level);
    let mut state = decode_state(program, level, record)?;
    let opener = scope.parent().zip(scope.opened_by()).and_then(|(parent, (name, _))| {
        let shape = root.of_scope(&parent)?;
        let above = scopes.get(&(parent.depth(), parent.clone()))?;
        Some((shape, shape.opener(&name)?, parent, above))
    });
    if let Some((shape, place, parent, above)) = opener {
        let around = state_of(program, root, scopes, &above.record)?;
        let step_ref = StepRef { scope: &parent, level: shape.level(), place, step: &shape.steps()[place] };
        program.attach(step_ref, &around, &mut state);
    }
    Ok(state)
}

/// Returns the files that the running steps of a scope may write, as named by the program.
pub(crate) fn in_flux<P: Program>(program: &P, scopes: &ScopesInForce, known: &ScopeInForce) -> Vec<String> {
    let Some(shape) = program.shape().of_scope(&known.record.header().scope) else { return Vec::new() };
    let under_way = known.position.frontier.iter().filter(|entry| is_under_way(entry));
    let places = under_way.filter_map(|entry| shape.place(entry.step.as_str()));
    let places: Vec<usize> = places.filter(|place| shape.steps()[*place].claims).collect();
    if places.is_empty() {
        return Vec::new();
    }
    // An undecodable state stops the resume elsewhere.
    let Ok(state) = state_of(program, program.shape(), scopes, &known.record) else { return Vec::new() };
    let subjects = |place: usize| {
        let scope = &known.record.header().scope;
        let step_ref = StepRef { scope, level: shape.level(), place, step: &shape.steps()[place] };
        program.subjects(step_ref, &state)
    };
    places.into_iter().flat_map(subjects).collect()
}

type ClaimVerdicts = (Verdicts, HashMap<(ScopePath, u64), Vec<Claim>>);

/// Verifies the due claims within a single time budget.
pub(crate) async fn verify<P: Program>(
    engine: &Engine,
    program: &P,
    run: &RunRecord,
    checks: &[Check],
    on_unknown: OnUnknown,
) -> Result<ClaimVerdicts, RunError> {
    let site = engine.site(run);
    let codes = exit_codes(engine, run, checks).await?;
    let code = |check: &Check| codes.get(&(&check.scope, check.seq?)).copied();
    let with_code = |check: &Check| (check.claim.clone(), site.clone().with_exit_code(code(check)));
    let claims: Vec<(Claim, Site)> = checks.iter().map(with_code).collect();
    drop(codes);
    let checked = engine.verifier.verify_all(&claims).await;
    let mut verdicts = Verdicts::new();
    let mut found: HashMap<(ScopePath, u64), Vec<Claim>> = HashMap::new();
    for (check, claim) in checks.iter().zip(checked) {
        let verdict = match (claim.verdict, on_unknown) {
            (Verdict::Unknown, OnUnknown::RunAgain) => Verdict::Failed,
            (verdict, _) => verdict,
        };
        verdicts.insert((check.scope.clone(), check.step.clone(), check.index), verdict);
        let mut claim = claim;
        program.redact(&mut claim);
        found.entry((check.scope.clone(), check.seq.unwrap_or(0))).or_default().push(claim);
    }
    Ok((verdicts, found))
}

/// Reads the recorded exit codes of ended steps, for claims that may refer to these. Claims about files do not.
async fn exit_codes<'c>(
    engine: &Engine,
    run: &RunRecord,
    checks: &'c [Check],
) -> Result<HashMap<(&'c ScopePath, u64), i32>, RunError> {
    let mut asked: BTreeMap<&ScopePath, BTreeSet<u64>> = BTreeMap::new();
    let may_ask = |check: &&Check| !matches!(check.claim.kind.as_str(), ARTIFACT_EXISTS | FILE_SHA256);
    for check in checks.iter().filter(may_ask) {
        asked.entry(&check.scope).or_default().extend(check.seq);
    }
    let mut codes = HashMap::new();
    for (scope, seqs) in asked {
        for (seq, made) in engine.store.records(&run.run, scope, &seqs).await? {
            let code = ending_of(made.header()).and_then(|ending| ending.exit_code);
            codes.extend(code.map(|code| ((scope, seq), code)));
        }
    }
    Ok(codes)
}

fn ending_of(header: &Header) -> Option<&Ending> {
    match &header.phase {
        Phase::Completed(ending) => Some(ending),
        Phase::Failed(failure) => Some(&failure.ending),
        _ => None,
    }
}

/// Returns `ok` for the claims of all finished steps, without a check. Interrupted steps are not settled.
fn assumed_ok(checks: &[Check]) -> Verdicts {
    let finished = checks.iter().filter(|check| check.seq.is_some());
    let key = |check: &Check| (check.scope.clone(), check.step.clone(), check.index);
    finished.map(|check| (key(check), Verdict::Ok)).collect()
}

impl Judgement {
    /// Turns broken steps into questions, for cases that only a person can decide.
    pub(crate) fn ask(&mut self) {
        let asked = std::mem::take(&mut self.broken).into_iter().map(|broken| Decision {
            scope: broken.scope,
            step: broken.step,
            action: Action::Ask,
            cause: Cause::EvidenceFailed(broken.claims),
        });
        self.questions.extend(asked);
    }

    /// Keeps non-idempotent steps with failed evidence in force that a person counts as done.
    pub(crate) fn keep_done(&mut self, answers: &Answers) {
        self.take_held(answers, TreatAs::Done);
    }

    /// Allows reruns of non-idempotent steps with failed evidence, by decision of a person.
    pub(crate) fn allow_retries(&mut self, answers: &Answers) {
        let released = self.take_held(answers, TreatAs::Retry);
        self.broken.extend(released);
    }

    /// Removes the steps with failed evidence that have this decision, and their questions.
    fn take_held(&mut self, answers: &Answers, decided: TreatAs) -> Vec<Broken> {
        let is_decided = |scope: &ScopePath, step: &StepId| answers.about(scope, step) == Some(decided);
        let is_of_evidence = |asked: &Decision| matches!(asked.cause, Cause::EvidenceFailed(_));
        self.questions.retain(|asked| !is_of_evidence(asked) || !is_decided(&asked.scope, &asked.step));
        self.broken_careful
            .extract_if(.., |broken_careful| is_decided(&broken_careful.scope, &broken_careful.step))
            .collect()
    }

    /// Returns the verified claims of a record, as a pack for display.
    pub(crate) fn pack_of(&self, scope: &ScopePath, seq: u64) -> Option<Pack> {
        let claims = self.found.get(&(scope.clone(), seq))?.clone();
        Some(Pack::all(claims))
    }
}

/// The claims that a session verifies again.
#[derive(Debug, Default)]
pub(crate) struct PendingClaims {
    /// True if all claims in force must be verified before the run ends: steps were rerun after the last
    /// verification.
    pub(crate) is_redone: bool,
    /// The claims not verified yet, by the running step that may rewrite the claimed files.
    pub(crate) deferred: DeferredClaims,
    /// True if such a step has ended without the same claim: no step starts before all claims are verified.
    pub(crate) is_due: bool,
}

impl PendingClaims {
    /// Returns whether claims must be verified before the run ends.
    pub(crate) fn is_any(&self) -> bool {
        self.is_redone || self.is_due || !self.deferred.is_empty()
    }

    /// Notes the completion of a step with evidence. Returns whether another verification is due.
    pub(crate) fn note_end(&mut self, scope: &ScopePath, step: &StepId, evidence: Option<&Pack>) -> bool {
        if self.deferred.is_empty() {
            return false;
        }
        let Some(deferred) = self.deferred.remove(&(scope.clone(), step.clone())) else { return false };
        // A claim of this step replaces the same claims of earlier steps.
        let claims = evidence.into_iter().flat_map(|pack| &pack.claims);
        let own: Vec<ClaimKey> = claims.map(ClaimKey::of).collect();
        let is_due = deferred.iter().any(|deferred| !own.iter().any(|own| deferred.gives_way_to(own)));
        self.is_due |= is_due;
        is_due
    }
}

/// Returns questions about steps in conflict: a resume has rerun a step for its evidence, and the evidence fails again after
/// the rerun of another step.
pub(crate) async fn conflicts(
    store: &dyn Store,
    run: &RunId,
    targets: &BTreeMap<ScopePath, Vec<Target>>,
    resume: u64,
) -> Result<Vec<Decision>, RunError> {
    let done = evidence_reruns(store, run, resume).await?;
    let mut questions = Vec::new();
    for (scope, targets) in targets {
        for Target { seq, step, claims, .. } in targets {
            let Some(claims) = claims else { continue };
            let made = store.load(run, scope, *seq).await?;
            let pass = (scope.clone(), step.clone(), made.header().at.iteration.clone());
            if done.contains_key(&pass) {
                let others = done.iter().filter(|(other, _)| **other != pass);
                let others = others.map(|((_, step, _), claims)| (step.clone(), claims.clone())).collect();
                let cause = Cause::EvidenceUndone { claims: claims.clone(), others };
                let (scope, step) = (scope.clone(), step.clone());
                questions.push(Decision { scope, step, action: Action::Ask, cause });
            }
        }
    }
    Ok(questions)
}

/// Returns the steps that a resume reran for their evidence, by scope, step and pass, with the failed claims.
async fn evidence_reruns(
    store: &dyn Store,
    run: &RunId,
    resume: u64,
) -> Result<BTreeMap<(ScopePath, StepId, Vec<u32>), Vec<String>>, RunError> {
    let mut done = BTreeMap::new();
    let restored = Scan { phase: Some("restored"), ..Scan::of(run) };
    let restored = store.scan_where(restored, &|record| record.header().resume == resume).await?;
    for header in restored.iter().map(Record::header) {
        if let (Some(step), Some(claims)) = (&header.step, broken_by(header)) {
            done.insert((header.scope.clone(), step.clone(), header.at.iteration.clone()), claims);
        }
    }
    Ok(done)
}
