//! The point from which a resume continues: for each scope in force, a record and a position.
//!
//! [`find`] works in this order. Reads and verifies only; writes nothing.
//!
//! 1. Loads the scopes in force. In a graph with routes, a scope may rejoin its results from before a rewind
//!    ([`rejoin`]).
//! 2. Verifies the evidence of the finished steps ([`judge`]).
//! 3. Chooses the steps to rerun in each scope ([`targets`]), and invalidates these steps or rewinds the scope.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::id::{RunId, ScopePath, StepId};
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::plan::{Broken, Decision, DeferredClaims};
use crate::projection::events::RerunCause;
use crate::record::{FrontierEntry, Position, Record, Settled};
use crate::store::{StoreError, StoreExt as _};

use super::begin::Base;
use super::in_doubt::recoverable;
use super::invalidation::{Invalidation, invalidate_targets};
use super::requested::Requested;
use super::reruns::{Target, Transition, opener_of, targets, to_rerun};
use super::trust::conflicts;
use super::trust::{
    JudgeOptions, Judgement, ScopeInForce, ScopesInForce, Trust, child_in_force, end_before, ended_at,
    ended_on, failed_on, is_step_on, joined_on, judge,
};
use crate::engine::inspect::position_of;
use crate::engine::scope::child_ends::{Joins, has_state, in_pass, openers_of_lost_passes};
use crate::engine::walk::choice::answer;
use crate::engine::walk::failure::position_for_retry;
use crate::engine::walk::in_place::Declarers;
use crate::engine::walk::invalidate::{ReusePolicy, invalidated, upstream_of};
use crate::engine::walk::rewind::{Rejoined, Rewind, drop_chain, rejoin};
use crate::engine::{Answers, Engine, Program, RunError};

/// The scopes that do not continue from their newest record, and the questions before a resume.
#[derive(Debug, Default)]
pub(crate) struct ResumePoint {
    /// Questions to a person, before anything runs.
    pub(crate) questions: Vec<Decision>,
    /// Scopes that continue from another record than their newest.
    pub(crate) moves: BTreeMap<ScopePath, Transition>,
    /// Scopes out of force that a rollback moves.
    pub(crate) closed: BTreeMap<ScopePath, Transition>,
    /// Interrupted steps of the main scope that evidence proves to be done, with their questions.
    pub(crate) settled: Vec<Decision>,
    /// True if the evidence of all finished steps was verified.
    pub(crate) is_verified: bool,
    /// Unverified claims: a running step may rewrite the claimed files. Due when that step has ended.
    pub(crate) deferred: DeferredClaims,
    /// True if the main scope of a graph with routes rewinds. A claim of a reusable result replaces an upstream claim
    /// for this check only: the next check follows the next end.
    pub(crate) rewinds: bool,
    /// The claims of ends about files.
    pub(crate) declarers: Declarers,
    /// Requested scopes that are out of force, because an ancestor reruns from an earlier step.
    pub(crate) unreached: BTreeSet<ScopePath>,
}

impl ResumePoint {
    /// Returns whether every scope continues from its newest record.
    pub(crate) fn is_unmoved(&self) -> bool {
        self.questions.is_empty() && self.moves.is_empty()
    }
}

/// The query for a resume point: the trust in evidence, and the requested reruns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResumeQuery<'a> {
    pub(crate) trust: Trust,
    /// True if a worker claimed the run: failures are not retried.
    pub(crate) keeps_failures: bool,
    /// True for a later session of the same resume: unchanged evidence is not verified again.
    pub(crate) again: bool,
    /// True to verify also if `again`: all steps have ended, and the last rerun may have invalidated other evidence; or
    /// the ended step had deferred a check.
    pub(crate) verifies_all: bool,
    /// True if a person edits the state: no step reruns without a request.
    pub(crate) edits_state: bool,
    /// True if no step runs: only the questions about steps in doubt are listed.
    pub(crate) lists_only: bool,
    /// The number of the resume.
    pub(crate) resume: u64,
    /// True if evidence may settle the steps in doubt: no function of the caller settles these steps.
    pub(crate) recovers: bool,
    /// The decisions of a person about steps in doubt.
    pub(crate) answers: &'a Answers,
    /// True if a person requests a rerun, and may count steps with failed evidence as done.
    pub(crate) keeps_done: bool,
    /// Requested reruns below the main scope.
    pub(crate) requested: &'a Requested,
    /// Earlier steps whose edited files are broken: these steps rerun first.
    pub(crate) broken_declarers: &'a [Broken],
    /// Choices of a person: these answer questions.
    pub(crate) chosen: &'a BTreeSet<(ScopePath, StepId)>,
}

/// Returns the point from which a resume continues.
pub(crate) async fn find<P: Program>(
    engine: &Engine,
    program: &P,
    shape: &Shape,
    base: &Base,
    query: ResumeQuery<'_>,
) -> Result<ResumePoint, RunError> {
    if query.lists_only {
        let (record, position) = (base.record.clone(), base.position.clone());
        let main = (0, record.header().scope.clone());
        let known = ScopeInForce { record, position, joined: HashMap::new() };
        let scopes = ScopesInForce::from([(main, known)]);
        let run = base.snapshot.entry.record.record();
        let mut judgement = judge(engine, program, shape, (run, &scopes), Trust::Unchecked.into()).await?;
        query.answers.remove_continuing(&mut judgement.questions);
        answer(query.chosen, &mut judgement.questions);
        return Ok(ResumePoint { questions: judgement.questions, ..ResumePoint::default() });
    }
    let mut loader = ScopeLoader::new(engine, shape);
    loader.requested = Some(query.requested);
    loader.keeps_failures = query.keeps_failures;
    let run = base.snapshot.entry.record.record();
    let site = engine.site(run);
    let (mut scopes, mut moves) = loader.load((&base.record, &base.position)).await?;
    let forwards = moves.values().any(|moved| !moved.drafts.is_empty());
    let trust = if query.again && !forwards && !query.verifies_all { Trust::Unchecked } else { query.trust };
    let named = query.requested.step.as_ref();
    let options = JudgeOptions { trust, broken_declarers: query.broken_declarers, named };
    let mut judgement = judge(engine, program, shape, (run, &scopes), options).await?;
    query.answers.remove_continuing(&mut judgement.questions);
    judgement.allow_retries(query.answers);
    if let Some((scope, step)) = named {
        // The request decides, whatever the evidence of the step.
        judgement.questions.retain(|asked| (&asked.scope, &asked.step) != (scope, step));
    }
    if query.keeps_done {
        judgement.keep_done(query.answers);
    }
    answer(query.chosen, &mut judgement.questions);
    let mut settled = Vec::new();
    if query.recovers {
        let is_open = |question: &&Decision| query.answers.about(&question.scope, &question.step).is_none();
        let open = judgement.questions.iter().filter(is_open).cloned().collect();
        settled = recoverable(engine, program, &site, &base.record, open).await?;
        judgement.questions.retain(|question| !settled.contains(question));
    }
    if query.edits_state {
        judgement.ask();
    }
    // A confirmed rerun keeps the requested reruns: the step runs at its turn.
    let is_confirmed = |question: &Decision| query.answers.retries(&question.scope, &question.step);
    let goes_on = program.keeps_apart() && !query.requested.is_empty();
    let stops = !goes_on || !judgement.questions.iter().all(is_confirmed);
    if !judgement.questions.is_empty() && stops {
        return Ok(ResumePoint { questions: judgement.questions, ..ResumePoint::default() });
    }
    let confirmed = std::mem::take(&mut judgement.questions);
    let broken = std::mem::take(&mut judgement.broken);
    judgement.broken = match shape.is_routed() {
        true => openers_of_lost_passes(engine.store.as_ref(), shape, &scopes, broken).await?,
        false => broken,
    };
    if let Some(named) = named {
        judgement.broken.push(loader.named(&run.run, &scopes, named).await?);
    }
    for (scope, step) in query.requested.changed.iter().chain(&query.requested.retried) {
        let ended = loader.ended_on(&scopes, scope, step).await?;
        let is_finished = |known: &ScopeInForce| {
            let (own, position) = (shape.of_scope(scope), &known.position);
            own.is_some_and(|own| {
                own.place(step.as_str()).is_some_and(|place| !Unfinished::of(own, position).has(place))
            })
        };
        let is_copied =
            ended.is_none() && scopes.get(&(scope.depth(), scope.clone())).is_some_and(is_finished);
        let is_changed = query.requested.changed.contains(&(scope.clone(), step.clone()));
        if is_copied || is_changed && has_copied_pass(shape, &scopes, scope) {
            return Err(copied_end(&run.run, scope, step));
        }
        judgement.broken.extend(ended);
    }
    moves.extend(back_to_work(shape, &mut scopes, &judgement.broken));
    loader.note_joins(&mut scopes).await?;
    let apart = program.keeps_apart() && !query.requested.is_empty();
    let ends_before_rewind = std::mem::take(&mut loader.ends_before_rewind);
    let damaged = std::mem::take(&mut loader.damaged);
    let all = targets(shape, &scopes, (&judgement.broken, &damaged), (query.requested, apart));
    let targets = &all.targets;
    if query.again {
        let questions = conflicts(engine.store.as_ref(), &run.run, targets, query.resume).await?;
        if !questions.is_empty() {
            return Ok(ResumePoint { questions, ..ResumePoint::default() });
        }
    }
    let joins_again = |scope: &ScopePath| {
        let above = scope.parent().and_then(|parent| targets.get(&parent));
        let opener = opener_of(shape, scope);
        let is_join = |target: &Target| target.claims.is_none() && Some(&target.step) == opener.as_ref();
        above.is_some_and(|targets| targets.iter().any(is_join))
    };
    moves.extend(ends_before_rewind.into_iter().filter(|(scope, _)| joins_again(scope)));
    let mut rewinds = false;
    let policy = ReusePolicy::excluded(!query.answers.retries_all());
    for (scope, targets) in targets {
        let known = &scopes[&(scope.depth(), scope.clone())];
        let request = (query.requested, policy);
        let taken =
            loader.invalidate_or_rewind(program, (known, targets), (&scopes, &judgement), request).await?;
        // Rerun children are joined first.
        let is_own = targets.first().is_some_and(|target| target.claims.is_some());
        rewinds |= scope.is_main()
            && is_own
            && taken.as_ref().is_some_and(|(_, moved)| moved.position.chain.is_some());
        moves.extend(taken);
    }
    if program.keeps_apart() {
        query.requested.defer(shape, &all, &mut moves, policy);
        query.requested.exclude_after_open(shape, &scopes, &mut moves, policy);
    }
    let (is_verified, deferred, declarers) =
        (trust != Trust::Unchecked, judgement.deferred, judgement.declarers);
    let questions = confirmed;
    let (unreached, closed) = (all.unreached, BTreeMap::new());
    Ok(ResumePoint {
        questions,
        moves,
        closed,
        settled,
        is_verified,
        deferred,
        rewinds,
        declarers,
        unreached,
    })
}

/// Moves openers with open hooks back to their work, if a scope of the work has failed evidence. Returns the
/// transitions.
fn back_to_work(
    shape: &Shape,
    scopes: &mut ScopesInForce,
    broken: &[Broken],
) -> BTreeMap<ScopePath, Transition> {
    let mut moves = BTreeMap::new();
    for broken in broken {
        let around = std::iter::successors(Some(broken.scope.clone()), ScopePath::parent);
        for (below, above) in around.filter_map(|below| below.parent().map(|above| (below, above))) {
            let Some(opener) = opener_of(shape, &below) else { continue };
            let Some(known) = scopes.get_mut(&(above.depth(), above.clone())) else { continue };
            let is_in_hooks = |entry: &&mut FrontierEntry| {
                entry.step == opener && entry.fan.is_some() && entry.hooks.is_some()
            };
            let Some(entry) = known.position.frontier.iter_mut().find(is_in_hooks) else { continue };
            entry.back_to_work();
            moves.insert(above, Transition::in_place(known));
        }
    }
    moves
}

/// Returns the scopes in force, each with the record and the position from which a resume continues.
pub(crate) async fn scopes_in_force<P: Program>(
    engine: &Engine,
    program: &P,
    main: (&Record, &Position),
) -> Result<ScopesInForce, RunError> {
    let shape = program.shape();
    let mut loader = ScopeLoader::new(engine, shape);
    Ok(loader.load(main).await?.0)
}

/// Returns the transitions of the main scope and of the scopes below, for the rerun of a step of a scope. No
/// evidence is verified.
///
/// # Errors
/// [`RunError::InvalidStep`]: the scope has no such step. [`RunError::NotFinished`]: the step has not finished
/// there, or no step would join the scope.
pub(crate) async fn reopen_for<P: Program>(
    engine: &Engine,
    program: &P,
    main: (&Record, &Position),
    step: &(ScopePath, StepId),
) -> Result<BTreeMap<ScopePath, Transition>, RunError> {
    let shape = program.shape();
    let requested = Requested::step_below(step.0.clone(), step.1.clone(), shape);
    let mut loader = ScopeLoader::new(engine, shape);
    loader.requested = Some(&requested);
    let (mut scopes, mut moves) = loader.load(main).await?;
    let named = loader.named(&main.0.header().run, &scopes, step).await?;
    loader.note_joins(&mut scopes).await?;
    let all = targets(shape, &scopes, (&[named], &BTreeSet::new()), (&requested, program.keeps_apart()));
    let (judgement, policy) = (Judgement::default(), ReusePolicy::Drop);
    for (scope, targets) in &all.targets {
        let known = &scopes[&(scope.depth(), scope.clone())];
        let request = (&requested, policy);
        moves.extend(
            loader.invalidate_or_rewind(program, (known, targets), (&scopes, &judgement), request).await?,
        );
    }
    requested.exclude_after_open(shape, &scopes, &mut moves, policy);
    Ok(moves)
}

/// Returns whether a scope is in a pass of a loop whose earlier passes stay in the run before a fork or an import.
fn has_copied_pass(root: &Shape, scopes: &ScopesInForce, scope: &ScopePath) -> bool {
    std::iter::successors(Some(scope.clone()), ScopePath::parent).any(|below| {
        let fan = below.parent().and_then(|above| {
            scopes.get(&(above.depth(), above))?.position.fan_of(&opener_of(root, &below)?)
        });
        fan.is_some_and(|fan| fan.passes.iter().any(|pass| pass.since == 0))
    })
}

/// Returns the error for a changed step whose end stays in the run before a fork or an import: the step cannot rerun alone.
fn copied_end(run: &RunId, scope: &ScopePath, step: &StepId) -> RunError {
    let why = format!(
        "step `{step}` of scope `{}` changed, and its result is a copy from another run: fork that run again with the \
         changed file (`waypost fork RUN --with FILE`)",
        scope.readable()
    );
    RunError::Changed { run: run.clone(), why }
}

/// Returns the transitions of scopes with steps to rerun, and of the openers above the requested scopes. Results
/// downstream stay reusable.
///
/// `scopes`: the scopes in force. `broken`: the ends of the steps to rerun.
pub(crate) async fn reopened_at<P: Program>(
    engine: &Engine,
    program: &P,
    (scopes, broken): (&mut ScopesInForce, &[Broken]),
    requested: &Requested,
) -> Result<BTreeMap<ScopePath, Transition>, RunError> {
    let shape = program.shape();
    let loader = ScopeLoader { requested: Some(requested), ..ScopeLoader::new(engine, shape) };
    loader.note_joins(scopes).await?;
    let scopes = &*scopes;
    let all = targets(shape, scopes, (broken, &BTreeSet::new()), (requested, program.keeps_apart()));
    let (judgement, mut moves) = (Judgement::default(), BTreeMap::new());
    for (scope, targets) in &all.targets {
        let known = &scopes[&(scope.depth(), scope.clone())];
        let request = (requested, ReusePolicy::Keep);
        moves.extend(
            loader.invalidate_or_rewind(program, (known, targets), (scopes, &judgement), request).await?,
        );
    }
    Ok(moves)
}

/// Loads the scopes in force of a run.
struct ScopeLoader<'a> {
    engine: &'a Engine,
    shape: &'a Shape,
    /// The rewound scopes whose opener is at a record after their join: for a join that runs again, the transition back
    /// to the end of the scope.
    ends_before_rewind: BTreeMap<ScopePath, Transition>,
    /// The requested scopes; these and their ancestors are loaded in any case.
    requested: Option<&'a Requested>,
    /// True if failures are not retried.
    keeps_failures: bool,
    /// The joined scopes without a sound end: their openers join again.
    damaged: BTreeSet<ScopePath>,
}

impl<'a> ScopeLoader<'a> {
    fn new(engine: &'a Engine, shape: &'a Shape) -> Self {
        let (ends_before_rewind, damaged) = (BTreeMap::new(), BTreeSet::new());
        Self { engine, shape, ends_before_rewind, requested: None, keeps_failures: false, damaged }
    }

    /// Returns whether a scope is requested, or an ancestor of a requested scope.
    fn is_on_the_way(&self, scope: &ScopePath) -> bool {
        self.requested.is_some_and(|requested| requested.is_on_the_way(scope))
    }

    /// Loads the scopes in force, parents first: the main scope, awaited children, and joined children with evidence.
    /// Rejoins rewound scopes where possible.
    async fn load(
        &mut self,
        (record, position): (&Record, &Position),
    ) -> Result<(ScopesInForce, BTreeMap<ScopePath, Transition>), RunError> {
        let (mut scopes, mut moves) = (ScopesInForce::new(), BTreeMap::new());
        self.add_scope_in_force((record.clone(), position.clone()), &mut scopes, &mut moves).await?;
        self.add_children(&record.header().run, &mut scopes, &mut moves).await?;
        Ok((scopes, moves))
    }

    /// Invalidates steps of a scope, or rewinds the scope in a graph with routes. Returns the transition; `None` if the
    /// steps are already unfinished.
    async fn invalidate_or_rewind<P: Program>(
        &self,
        program: &P,
        (known, targets): (&ScopeInForce, &[Target]),
        (scopes, judgement): (&ScopesInForce, &Judgement),
        (requested, policy): (&Requested, ReusePolicy),
    ) -> Result<Option<(ScopePath, Transition)>, RunError> {
        let (engine, scope) = (self.engine, known.record.header().scope.clone());
        let Some((target, own)) = targets.first().zip(self.shape.of_scope(&scope)) else { return Ok(None) };
        if !own.is_routed() {
            let policy = if program.keeps_apart() { policy } else { ReusePolicy::Keep };
            let named = requested.step.as_ref().filter(|(on, _)| *on == scope).map(|(_, step)| step);
            let opening = Invalidation { engine, root: program.shape(), judgement, policy, named };
            let Some(mut moved) = invalidate_targets(opening, known, targets).await? else { return Ok(None) };
            if let Some(draft) = moved.drafts.first_mut() {
                let causes: Vec<_> = requested.causes_on(&scope).collect();
                let is_named = |step: &&StepId| causes.iter().any(|(named, _)| named == step);
                let upstream = |step: &StepId| {
                    upstream_of(own, step, targets.iter().map(|target| &target.step)).cloned()
                };
                let others = to_rerun(own, &known.position, &moved.position);
                let others = others.into_iter().filter(|step| !is_named(step) && **step != target.step);
                let others = others.map(|step| (step, RerunCause::UpstreamChanged { step: upstream(step) }));
                let others: Vec<_> = others.collect();
                let notes = causes.iter().map(|(step, cause)| (*step, cause));
                let notes = notes.chain(others.iter().map(|(step, cause)| (*step, cause)));
                draft.report.notes.extend(notes.map(|(step, cause)| invalidated(step, cause)));
            }
            return Ok(Some((scope, moved)));
        }
        let rewind = Rewind { engine, root: self.shape, scopes, known, target, judgement };
        let mut moved = rewind.to_start().await?;
        if !requested.is_empty() {
            // A person requested the rerun: no downstream result is reused.
            drop_chain(&mut moved.position, own);
        }
        Ok(Some((scope, moved)))
    }

    async fn add_children(
        &mut self,
        run: &RunId,
        scopes: &mut ScopesInForce,
        moves: &mut BTreeMap<ScopePath, Transition>,
    ) -> Result<(), RunError> {
        self.ends_before_rewind.clear();
        let opens = |known: &ScopeInForce| {
            !known.joined.is_empty() || known.position.frontier.iter().any(FrontierEntry::has_children)
        };
        let mut children = self.shape.steps().iter().flat_map(Step::all_children);
        let any = children.any(|children| children.shape.has_evidence());
        if (!any && self.requested.is_none_or(Requested::is_empty)) || !scopes.values().any(opens) {
            return Ok(());
        }
        let store = self.engine.store.as_ref();
        let mut names: Vec<ScopePath> = store.scopes(run).await?.into_iter().collect();
        names.retain(|name| !name.is_main() && (any || self.is_on_the_way(name)));
        names.sort_by_key(ScopePath::depth);
        let mut joins = Joins::new();
        for name in names {
            let is_named = self.is_on_the_way(&name);
            let Some(child) = child_in_force(self.shape, scopes, &name, is_named) else { continue };
            let record = match store.newest(run, &name).await {
                // The resume of the scope reports the damage.
                Err(StoreError::Damaged { .. }) => {
                    self.damaged.extend(child.is_joined.then_some(name));
                    continue;
                }
                record => record?,
            };
            let newest = position_of(&record)?;
            let in_force = match child.is_joined && record.header().end.is_none() {
                true => end_before(store, record.header()).await?,
                false => Some(record.clone()),
            };
            if in_force.is_none() {
                self.damaged.insert(name);
                continue;
            }
            let in_force = match in_force {
                Some(in_force) => in_pass(store, self.shape, (scopes, &mut joins), (in_force, child)).await?,
                None => None,
            };
            let Some((in_force, origin)) = in_force else { continue };
            if !has_state(&in_force) {
                if is_named {
                    let at = in_force.header().reference().to_string();
                    let why = "retention dropped its final state".to_owned();
                    return Err(RunError::NoState { at, why });
                }
                // The scope cannot resume without a state, but its evidence is still checked.
                let position = Position { origin: Some(origin), ..Position::default() };
                self.add_scope_in_force((in_force, position), scopes, moves).await?;
                continue;
            }
            let position = match self.shape.of_scope(&name) {
                Some(own) => position_for_retry(own, &in_force, self.keeps_failures)?.0,
                None => position_of(&in_force)?,
            };
            if in_force.header().seq != record.header().seq {
                let Some(own) = self.shape.of_scope(&name) else { continue };
                let rejoined =
                    Rejoined { record: in_force.clone(), position: position.clone(), reused: Vec::new() };
                self.ends_before_rewind.insert(name, rejoined.into_transition(own, record.header(), &newest));
            }
            self.add_scope_in_force((in_force, position), scopes, moves).await?;
        }
        Ok(())
    }

    /// Adds a scope, after a rejoin if possible.
    async fn add_scope_in_force(
        &self,
        (record, position): (Record, Position),
        scopes: &mut ScopesInForce,
        moves: &mut BTreeMap<ScopePath, Transition>,
    ) -> Result<(), RunError> {
        let scope = record.header().scope.clone();
        let Some(shape) = self.shape.of_scope(&scope) else { return Ok(()) };
        let mut known = (record, position);
        // An ended scope stays at its end.
        if known.0.header().end.is_none()
            && let Some(rejoined) = rejoin(&self.engine.store, shape, &known.0, &known.1).await?
        {
            let moved = rejoined.into_transition(shape, known.0.header(), &known.1);
            known = (moved.record.clone(), moved.position.clone());
            moves.insert(scope.clone(), moved);
        }
        let (record, position) = known;
        let also = self.requested.iter().flat_map(|requested| requested.ways_on(&scope)).collect();
        let store = self.engine.store.as_ref();
        let joined = joined_on(store, self.shape, (record.header(), &position), &also).await?;
        scopes.insert((scope.depth(), scope), ScopeInForce { record, position, joined });
        Ok(())
    }

    /// Returns the end of a step in a scope, if the scope is in force and the step is finished.
    async fn ended_on(
        &self,
        scopes: &ScopesInForce,
        scope: &ScopePath,
        step: &StepId,
    ) -> Result<Option<Broken>, StoreError> {
        let Some(known) = scopes.get(&(scope.depth(), scope.clone())) else { return Ok(None) };
        let store = self.engine.store.as_ref();
        let ended = ended_at(store, self.shape, (known.record.header(), &known.position), step).await?;
        Ok(ended.map(|seq| {
            let (scope, step) = (scope.clone(), step.clone());
            Broken { scope, step, seq, claims: Vec::new() }
        }))
    }

    /// Returns the end of the step to rerun on request.
    ///
    /// # Errors
    /// [`RunError::InvalidStep`]: the scope has no such step. [`RunError::NotFinished`]: the step has not finished
    /// there, or no step would join the scope.
    async fn named(
        &self,
        run: &RunId,
        scopes: &ScopesInForce,
        (scope, step): &(ScopePath, StepId),
    ) -> Result<Broken, RunError> {
        if !is_step_on(self.shape, scope, step) {
            return Err(RunError::InvalidStep(step.clone()));
        }
        let store = self.engine.store.as_ref();
        let ended = match scopes.get(&(scope.depth(), scope.clone())) {
            None => None,
            Some(known) => {
                let newest = (known.record.header(), &known.position);
                match failed_on(store, newest, step).await? {
                    Some(failed) => Some(failed.header().seq),
                    None => ended_at(store, self.shape, newest, step).await?,
                }
            }
        };
        let not_finished =
            || RunError::NotFinished { run: run.clone(), scope: scope.clone(), step: step.clone() };
        let seq = ended.ok_or_else(not_finished)?;
        Ok(Broken { scope: scope.clone(), step: step.clone(), seq, claims: Vec::new() })
    }

    /// Adds to the ledgers the joins that may run again and that the ledgers omit: joins of scopes without evidence, and
    /// joins that did not run again because all results were equal.
    async fn note_joins(&self, scopes: &mut ScopesInForce) -> Result<(), RunError> {
        let store = self.engine.store.as_ref();
        for known in scopes.values_mut() {
            let joins = known.joined.keys().filter(|step| !known.position.ledger.contains_key(*step));
            for step in joins.cloned().collect::<Vec<_>>() {
                let header = known.record.header();
                if let Some(joined) = ended_on(store, self.shape, (header, &known.position), &step).await? {
                    let settled = Settled::completed(joined.header().seq);
                    known.position.ledger.insert(step, settled);
                }
            }
        }
        Ok(())
    }
}
