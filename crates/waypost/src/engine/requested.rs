//! Reruns that a person requests below the main branch: a step of a branch, or failed branches.
//!
//! Input: the request. Output: the named branches, and on each branch above them the openers on the path.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{BranchPath, StepId};
use crate::plan::shape::{Shape, Unfinished};
use crate::projection::events::RerunCause;
use crate::record::{FrontierEntry, Position, RequestCause, RerunRequest, Try};

use super::ResumeFrom;
use super::definition::Forget;
use super::invalidate::{Cut, Invalidated, Results, invalidate};
use super::reruns::{Reopened, Target, opener_of};

/// The requested reruns, and the paths to the named branches.
#[derive(Debug, Default)]
pub(super) struct Requested {
    /// A step to rerun, with all downstream steps.
    pub(super) step: Option<(BranchPath, StepId)>,
    /// The person with the request.
    pub(super) by: Option<String>,
    /// Finished steps of child branches with a changed definition, to rerun.
    pub(super) changed: Vec<(BranchPath, StepId)>,
    /// Steps with a tolerated failure, to retry.
    pub(super) retried: Vec<(BranchPath, StepId)>,
    /// Branches to continue from their newest record, and to join again.
    pub(super) branches: BTreeSet<BranchPath>,
    /// The named branches and the branches above them, each with the openers on the path.
    ways: BTreeMap<BranchPath, BTreeSet<StepId>>,
}

impl Requested {
    /// Takes the requests below the main branch from `from`. `edited`: the edited branches.
    pub(super) fn take<'a>(
        from: &mut Option<ResumeFrom>,
        edited: impl Iterator<Item = &'a BranchPath>,
        shape: &Shape,
    ) -> Self {
        let mut requested = Self::default();
        match from.take_if(|from| matches!(from, ResumeFrom::StepOn(..) | ResumeFrom::Branches)) {
            Some(ResumeFrom::StepOn(branch, step)) => requested.step = Some((branch, step)),
            Some(ResumeFrom::Branches) => {
                requested.branches = edited.filter(|branch| !branch.is_main()).cloned().collect();
            }
            _ => {}
        }
        let named: Vec<BranchPath> =
            requested.step.iter().map(|(branch, _)| branch).chain(&requested.branches).cloned().collect();
        named.iter().for_each(|branch| requested.find_way(branch, shape));
        requested
    }

    /// Adds finished steps of child branches with a changed definition.
    pub(super) fn rerun_changed(&mut self, changed: Vec<(BranchPath, StepId)>, shape: &Shape) {
        for (branch, step) in changed {
            self.find_way(&branch, shape);
            self.changed.push((branch, step));
        }
    }

    /// Adds steps with a tolerated failure.
    pub(super) fn retry(&mut self, tolerated: Vec<(BranchPath, StepId)>, shape: &Shape) {
        tolerated.iter().for_each(|(branch, _)| self.find_way(branch, shape));
        self.retried.extend(tolerated);
    }

    /// Returns whether the rerun of a step is the retry of its tolerated failure: downstream results stay reusable.
    pub(super) fn retries(&self, branch: &BranchPath, step: &StepId) -> bool {
        self.retried.iter().any(|(on, retried)| (on, retried) == (branch, step))
    }

    fn find_way(&mut self, named: &BranchPath, shape: &Shape) {
        let mut below = named.clone();
        self.ways.entry(below.clone()).or_default();
        while let Some(above) = below.parent() {
            let opener = opener_of(shape, &below);
            let is_known = self.ways.contains_key(&above);
            let news = opener.is_some_and(|step| self.ways.entry(above.clone()).or_default().insert(step));
            if is_known && !news {
                break;
            }
            below = above;
        }
    }

    /// Excludes the results of requested steps that cannot rerun yet, because failed evidence reopens an upstream
    /// step; also the results of their downstream steps. The scopes below apply the request when these are
    /// entered.
    pub(super) fn defer(
        &self,
        shape: &Shape,
        targets: &BTreeMap<BranchPath, Vec<Target>>,
        moves: &mut BTreeMap<BranchPath, Reopened>,
        results: Results,
    ) {
        for ((branch, step), cause) in self.with_causes() {
            let is_target =
                |target: &Target| target.step == *step && (target.is_requested || self.retries(branch, step));
            if targets.get(branch).is_some_and(|targets| targets.iter().any(is_target)) {
                continue;
            }
            let request = RerunRequest { branch: branch.clone(), step: step.clone(), cause };
            let mut path: Vec<BranchPath> =
                std::iter::successors(Some(branch.clone()), BranchPath::parent).collect();
            path.reverse();
            for on in path {
                let below = below_on(shape, &on, &request);
                let Some((own, below)) = shape.of_branch(&on).zip(below) else { break };
                let moved = moves.get_mut(&on).filter(|moved| moved.position.has_result(&below.step));
                let Some(moved) = moved else { continue };
                moved.forgotten.extend(exclude(own, &mut moved.position, &below, results));
                if let Some(main) = moves.get_mut(&BranchPath::main()) {
                    main.position.requests.insert(request);
                }
                break;
            }
        }
    }

    /// Returns the causes of the reruns on a branch.
    pub(super) fn causes_on(&self, branch: &BranchPath) -> impl Iterator<Item = (&StepId, RerunCause)> {
        let own = self.with_causes().filter(move |((on, _), _)| on == branch);
        own.map(|((_, step), cause)| (step, cause.into()))
    }

    /// Returns the named and the changed steps, each with its cause.
    fn with_causes(&self) -> impl Iterator<Item = (&(BranchPath, StepId), RequestCause)> {
        let named = self.step.iter().chain(&self.retried);
        let named = named.map(|named| (named, RequestCause::Requested { by: self.by.clone() }));
        named.chain(self.changed.iter().map(|changed| (changed, RequestCause::DefinitionChanged)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }

    /// Returns whether a branch is named, or an ancestor of a named branch.
    pub(super) fn is_on_the_way(&self, branch: &BranchPath) -> bool {
        self.ways.contains_key(branch)
    }

    /// Returns the openers of a branch on the paths to the named branches.
    pub(super) fn ways_on(&self, branch: &BranchPath) -> impl Iterator<Item = &StepId> {
        self.ways.get(branch).into_iter().flatten()
    }
}

/// The step of a scope on the path to a requested step.
#[derive(Debug)]
struct StepOnPath {
    step: StepId,
    /// True for the requested step itself; false for an opener above.
    is_named: bool,
    /// The passes of an opener before the pass on the path: their results stay reusable.
    passes_kept: u32,
}

/// Excludes the reuse of a step and of all downstream steps, whose results are out of force; returns the results to remove
/// from the state. With [`Results::Drop`], a downstream step with `idempotent: false` is in doubt.
fn exclude(shape: &Shape, position: &mut Position, requested: &StepOnPath, results: Results) -> Vec<Forget> {
    let Some(place) = shape.place(requested.step.as_str()) else { return Vec::new() };
    let mut forgotten = Vec::new();
    for at in shape.downstream(&[place]).into_iter().chain([place]) {
        let step = &shape.steps()[at];
        let passes_kept = if at == place { requested.passes_kept } else { 0 };
        if !position.has_result(&step.id) {
            continue;
        }
        if at != place && results == Results::Drop && step.must_ask_again(true, None) {
            position.ask_about(&step.id, None);
        }
        position.drop_results(&step.id, passes_kept);
        if (at != place || requested.is_named) && step.opens() {
            position.rerun_whole.insert(step.id.clone());
        }
        if !position.has_result(&step.id) {
            forgotten.push(Forget::Step(step.id.clone()));
        }
    }
    forgotten
}

/// Returns the step of a scope on the path to a requested step: the opener of the next scope, or the requested
/// step. `None` if the scope is not on the path.
fn below_on(shape: &Shape, on: &BranchPath, request: &RerunRequest) -> Option<StepOnPath> {
    if *on == request.branch {
        return Some(StepOnPath { step: request.step.clone(), is_named: true, passes_kept: 0 });
    }
    let mut around = std::iter::successors(Some(request.branch.clone()), BranchPath::parent);
    let next = around.find(|below| below.parent().as_ref() == Some(on))?;
    let passes_kept = next.pass_number().map_or(0, |pass| pass.saturating_sub(1));
    Some(StepOnPath { step: opener_of(shape, &next)?, is_named: false, passes_kept })
}

/// Defers the reruns below openers whose branches are entered again: the scopes apply the requests when these are entered.
pub(super) fn defer_below(
    openers: &[StepId],
    changed: &[(BranchPath, StepId)],
    shape: &Shape,
    main: &mut Position,
) {
    let request = |(branch, step): &(BranchPath, StepId)| RerunRequest {
        branch: branch.clone(),
        step: step.clone(),
        cause: RequestCause::DefinitionChanged,
    };
    let requests = changed.iter().map(request);
    let is_below = |request: &RerunRequest| {
        below_on(shape, &BranchPath::main(), request).is_some_and(|below| openers.contains(&below.step))
    };
    main.requests.extend(requests.filter(is_below));
}

/// Applies the deferred requests to a scope that continues: invalidates the requested steps and all downstream steps.
///
/// `at`: the epoch and the outer iteration of the reruns.
pub(super) fn invalidate_requested(
    root: &Shape,
    (requests, branch): (&BTreeSet<RerunRequest>, &BranchPath),
    position: Position,
    at: &Try,
    results: Results,
) -> Invalidated {
    let unchanged = |position| Invalidated { position, forgotten: Vec::new() };
    let Some(shape) = root.of_branch(branch) else { return unchanged(position) };
    let unfinished = Unfinished::of(shape, &position);
    let steps = requests.iter().filter_map(|request| below_on(root, branch, request));
    let places = steps.filter_map(|below| shape.place(below.step.as_str()));
    let places: BTreeSet<usize> = places.filter(|place| !unfinished.has(*place)).collect();
    let places: Vec<usize> = places.into_iter().collect();
    let downstream = shape.downstream(&places);
    let cut = |place: usize| {
        let at = Try { iteration: shape.first_iteration(place, &at.iteration), ..at.clone() };
        let entry = FrontierEntry { at, ..FrontierEntry::ready(shape.steps()[place].id.clone()) };
        Cut { place, entry, is_named: false }
    };
    let cuts: Vec<Cut> = places.into_iter().filter(|place| !downstream.contains(place)).map(cut).collect();
    if cuts.is_empty() { unchanged(position) } else { invalidate(shape, &position, cuts, results) }
}

/// Applies the deferred requests to an entered scope: excludes the requested steps and all downstream steps from
/// reuse.
pub(super) fn apply(
    root: &Shape,
    requests: &BTreeSet<RerunRequest>,
    branch: &BranchPath,
    position: &mut Position,
    results: Results,
) {
    let Some(shape) = root.of_branch(branch) else { return };
    for request in requests {
        if let Some(below) = below_on(root, branch, request) {
            exclude(shape, position, &below, results);
        }
    }
}
