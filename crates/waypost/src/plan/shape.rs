//! The shape of a workflow: steps, needs, routes, and derived facts.
//!
//! A shape is a graph without the actions of its steps: it holds no state and runs nothing. The constructor
//! checks a shape once. Steps are addressed by place (an index into [`Shape::steps`]) on hot paths, elsewhere
//! by id.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use crate::id::{Digest, InvalidName, SCOPE_DEPTH_MAX, ScopePath, StepId};
use crate::record::{Definition, FrontierEntry, Position, Settled, StepPrint};

mod children;
mod loops;
mod names;
mod retry;
mod unfinished;

pub use children::{Children, FailureLimits, OnChildFailure};
pub use retry::{Growth, Retry};
pub use unfinished::Unfinished;

use loops::Loops;

/// The name of the end of a scope, as a route target.
pub const END: &str = "end";

/// Most steps in one graph: bounds a faulty generator. A fan-out has its own, larger limit.
pub const STEPS_MAX: usize = 100_000;

/// A step of a graph, as seen by plan and engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The step's id.
    pub id: StepId,
    /// The name of the step for people, beside the id.
    pub name: Option<String>,
    /// Steps that must finish before this step starts.
    pub needs: Vec<StepId>,
    /// The subset of `needs` whose skip also skips this step.
    pub skipped_with: Vec<StepId>,
    /// Steps reachable from this step by choice, back edges of loops included.
    pub routes: Vec<StepId>,
    /// The step may also end its scope by choice.
    pub may_end: bool,
    /// The step may be repeated after an interruption.
    pub idempotent: bool,
    /// How often and when a failed step is retried.
    pub retry: Retry,
    /// After this number of interruptions in a row, the step starts only alone; another interruption fails
    /// the step.
    pub cuts_max: u32,
    /// The time limit of one attempt.
    pub timeout: Option<Duration>,
    /// Subjects of the step's evidence, as normalized paths: files possibly written by the step.
    pub subjects: Vec<String>,
    /// The step makes claims whose subjects come from the state.
    pub claims: bool,
    /// The children of a fan-out, opened before the step runs. The step then runs as the join, after all
    /// children have ended.
    pub children: Option<Children>,
    /// The hooks: children opened after the step's work, with any outcome. The outcome takes effect after the hooks
    /// have ended. A rerun of the step reruns its hooks.
    pub hooks: Option<Children>,
    /// The step exists only for hooks of the run: the progress does not count the step.
    pub is_for_hooks: bool,
    /// SHA-256 over the definition of the step.
    pub fingerprint: Digest,
    /// SHA-256 over all that decides whether the step is skipped, if known: the end of a skipped step has no other input.
    pub admission: Option<Digest>,
    /// For an opener: the same hash without inner steps and item list, if these have their own digests.
    pub frame: Option<Digest>,
    /// For an opener: SHA-256 over the part of the frame that counts for the children.
    pub inherited: Option<Digest>,
    /// For an opener: SHA-256 over the item list, if the list alone decides the identity of items.
    pub list: Option<Digest>,
}

/// The default of [`Step::cuts_max`].
pub const CUTS_MAX: u32 = 3;

impl Step {
    /// Creates an idempotent step that needs `needs`, with a single attempt.
    pub fn new(id: StepId, needs: Vec<StepId>, fingerprint: Digest) -> Self {
        Self {
            id,
            name: None,
            needs,
            skipped_with: Vec::new(),
            routes: Vec::new(),
            may_end: false,
            idempotent: true,
            retry: Retry::default(),
            cuts_max: CUTS_MAX,
            timeout: None,
            subjects: Vec::new(),
            claims: false,
            children: None,
            hooks: None,
            is_for_hooks: false,
            fingerprint,
            admission: None,
            frame: None,
            inherited: None,
            list: None,
        }
    }

    /// Returns the route targets, sorted, with [`END`] for the end of the scope; empty if the step can only
    /// end.
    pub fn leads_to(&self) -> Vec<StepId> {
        let end = (self.may_end && !self.routes.is_empty())
            .then(|| StepId::new(END).expect("the end marker has a name no step can have"));
        let mut targets: Vec<StepId> = self.routes.iter().cloned().chain(end).collect();
        targets.sort();
        targets
    }

    /// Returns whether the step has evidence.
    pub fn has_evidence(&self) -> bool {
        self.claims || !self.subjects.is_empty()
    }

    /// Returns all children of the step: of its work, and its hooks.
    pub fn all_children(&self) -> impl Iterator<Item = &Children> {
        self.children.iter().chain(&self.hooks)
    }

    /// Returns whether scopes with this opener name are hooks of the step.
    pub fn are_hooks(&self, name: &StepId) -> bool {
        self.hooks.as_ref().is_some_and(|hooks| hooks.name == *name)
    }

    /// Returns whether the step opens children.
    pub fn opens(&self) -> bool {
        self.all_children().next().is_some()
    }

    /// Returns the definition of the open children of an entry; without open children, of the children of the work.
    pub fn opened(&self, entry: &FrontierEntry) -> Option<&Children> {
        if entry.hooks.is_some() { self.hooks.as_ref() } else { self.children.as_ref() }
    }

    /// Returns whether the step has begun in this entry, with possible effects of the step or its scopes.
    pub(crate) fn has_begun(&self, entry: &FrontierEntry) -> bool {
        entry.has_children() || entry.is_unsettled() || self.is_later_pass(entry)
    }

    /// Returns whether this entry is at a later pass of a repeated step.
    pub(crate) fn is_later_pass(&self, entry: &FrontierEntry) -> bool {
        self.routes.contains(&self.id) && entry.at.iteration.last().is_some_and(|pass| *pass > 1)
    }

    /// Returns whether the step, or a child, is not idempotent.
    pub(crate) fn is_careful(&self) -> bool {
        !self.idempotent || self.opens_careful()
    }

    /// Returns whether the step has an effect without its children.
    pub(crate) fn has_own_effect(&self) -> bool {
        !self.idempotent || !self.opens()
    }

    /// Returns whether a rerun of a finished step may repeat an effect that no child of the run records. The children of a
    /// fork or an import stay in the other run.
    pub(crate) fn repeats_effect_of(&self, end: &Settled) -> bool {
        !self.idempotent || self.opens_careful() && end.fan.is_none()
    }

    /// Notes the effect of a step that reruns: the step was done, or has begun (`entry` is its frontier entry). Returns
    /// whether a person must confirm the rerun.
    ///
    /// A later definition may declare an idempotent step non-idempotent: see [`is_asked`](Self::is_asked).
    pub(crate) fn note_effect(
        &self,
        position: &mut Position,
        was_done: bool,
        entry: Option<FrontierEntry>,
    ) -> bool {
        let begun = entry.filter(|entry| self.has_begun(entry));
        match self.is_careful() {
            _ if !was_done && begun.is_none() => return false,
            true => position.ask_about(&self.id, begun),
            false => position.note_effect(&self.id),
        }
        self.is_careful()
    }

    /// Returns whether a person must confirm the step at its turn. `entry`: its frontier entry.
    pub fn is_asked(&self, position: &Position, entry: Option<&FrontierEntry>) -> bool {
        let is_open = entry.is_some_and(FrontierEntry::has_children);
        position.asks_about(&self.id) || !is_open && self.is_careful() && position.had_effect(&self.id)
    }

    /// Returns whether two openers differ at most in the list of items and in the inner steps. With open children, the
    /// condition, the outputs and the tolerance may differ, too: the next decision uses the new values.
    pub(crate) fn has_frame_of(&self, other: &Self, is_open: bool) -> bool {
        let part = |step: &Self| if is_open { step.inherited } else { step.frame };
        part(self).is_some() && part(self) == part(other) && self.hooks.is_some() == other.hooks.is_some()
    }

    /// Returns whether the scopes of the step's work have non-idempotent steps.
    pub fn opens_careful(&self) -> bool {
        self.children.as_ref().is_some_and(|children| children.shape.is_careful())
    }

    /// Returns whether the scopes of the step's work have steps with evidence.
    pub fn opens_evidence(&self) -> bool {
        self.children.as_ref().is_some_and(|children| children.shape.has_evidence())
    }
}

/// The reason why a list of steps is not a valid graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// The graph is empty.
    #[error("the graph has no steps")]
    Empty,
    /// The graph has more steps than [`STEPS_MAX`].
    #[error("the graph has {0} steps, the maximum is {STEPS_MAX}")]
    TooMany(usize),
    /// Scopes nest deeper than a scope path allows.
    #[error("the scopes of step `{0}` nest deeper than the {SCOPE_DEPTH_MAX} levels allowed")]
    TooDeep(StepId),
    /// A scope key does not form a valid scope path.
    #[error("invalid scope of step `{step}`: {why}")]
    ScopeName {
        /// The opening step.
        step: StepId,
        /// The error in the key.
        why: InvalidName,
    },
    /// Two steps share an id.
    #[error("duplicate step `{0}`")]
    Twice(StepId),
    /// Two steps name their scopes after the same step.
    #[error("two steps open scopes named after step `{0}`")]
    SameScopes(StepId),
    /// A need or route names an unknown step.
    #[error("step `{step}` {names} `{target}`, which the graph does not have")]
    Unknown {
        /// The step with the need or route.
        step: StepId,
        /// `needs` or `leads to`.
        names: &'static str,
        /// The unknown step.
        target: StepId,
    },
    /// The start is not a step of the graph.
    #[error("the graph begins with `{0}`, which the graph does not have")]
    NoStart(StepId),
    /// Steps whose needs form a cycle.
    #[error("dependency cycle: {}", .0.iter().map(StepId::as_str).collect::<Vec<_>>().join(" needs "))]
    Cycle(Vec<StepId>),
}

/// Steps and their edges, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    steps: Vec<Step>,
    places: HashMap<StepId, usize>,
    needs: Vec<Vec<usize>>,
    followers: Vec<Vec<usize>>,
    routes: Vec<Vec<usize>>,
    loops: Loops,
    start: Option<usize>,
    level: usize,
    parallel_max: usize,
    /// One failure keeps all other steps from starting.
    fails_fast: bool,
    /// The depth of nested scopes.
    depth: usize,
    /// The places of the steps for hooks of the run.
    hooks: Vec<usize>,
}

impl Shape {
    /// Checks `steps` and returns a graph that runs at most `parallel_max` steps at once.
    ///
    /// # Errors
    /// [`ShapeError`] names the steps.
    pub fn new(steps: Vec<Step>, parallel_max: usize) -> Result<Self, ShapeError> {
        if steps.is_empty() {
            return Err(ShapeError::Empty);
        }
        if steps.len() > STEPS_MAX {
            return Err(ShapeError::TooMany(steps.len()));
        }
        names::check(&steps)?;
        let mut places = HashMap::with_capacity(steps.len());
        for (place, step) in steps.iter().enumerate() {
            if places.insert(step.id.clone(), place).is_some() {
                return Err(ShapeError::Twice(step.id.clone()));
            }
        }
        let resolve = |step: &Step, names: &'static str, targets: &[StepId]| {
            let find = |target: &StepId| {
                let unknown = || ShapeError::Unknown { step: step.id.clone(), names, target: target.clone() };
                places.get(target).copied().ok_or_else(unknown)
            };
            targets.iter().map(find).collect::<Result<Vec<_>, _>>()
        };
        let needs = steps.iter().map(|s| resolve(s, "needs", &s.needs)).collect::<Result<Vec<_>, _>>()?;
        let routes =
            steps.iter().map(|s| resolve(s, "leads to", &s.routes)).collect::<Result<Vec<_>, _>>()?;
        let mut followers = vec![Vec::new(); steps.len()];
        for (place, needs) in needs.iter().enumerate() {
            needs.iter().for_each(|need| followers[*need].push(place));
        }
        let loops = find_loops(&followers, &routes);
        let (start, level, parallel_max, fails_fast) = (None, 0, parallel_max.max(1), false);
        let below = |step: &Step| step.all_children().map(|children| children.shape.depth + 1).max();
        let depth = steps.iter().filter_map(below).max().unwrap_or(0);
        let is_for_hooks = |(place, step): (usize, &Step)| step.is_for_hooks.then_some(place);
        let hooks = steps.iter().enumerate().filter_map(is_for_hooks).collect();
        let shape = Self {
            steps,
            places,
            needs,
            followers,
            routes,
            loops,
            start,
            level,
            parallel_max,
            fails_fast,
            depth,
            hooks,
        };
        shape.refuse_cycles()?;
        Ok(shape)
    }

    /// Sets the start step; routes may lead back to this step.
    ///
    /// # Errors
    /// [`ShapeError::NoStart`]: the graph does not have this step.
    pub fn starting_with(mut self, step: &StepId) -> Result<Self, ShapeError> {
        self.start = Some(self.place(step.as_str()).ok_or_else(|| ShapeError::NoStart(step.clone()))?);
        Ok(self)
    }

    /// Sets the number of this shape within a program, by which the program finds the definition of a step.
    #[must_use]
    pub fn at_level(mut self, level: usize) -> Self {
        self.level = level;
        self
    }

    /// Sets whether one failure keeps all steps of the shape from starting, downstream or not.
    #[must_use]
    pub fn failing_fast(mut self, fails_fast: bool) -> Self {
        self.fails_fast = fails_fast;
        self
    }

    /// Returns whether one failure keeps all other steps from starting.
    pub fn fails_fast(&self) -> bool {
        self.fails_fast
    }

    /// Returns the number set by [`at_level`](Self::at_level); 0 by default.
    pub fn level(&self) -> usize {
        self.level
    }

    fn refuse_cycles(&self) -> Result<(), ShapeError> {
        let mut missing: Vec<usize> = self.needs.iter().map(Vec::len).collect();
        let mut free: Vec<usize> = (0..self.steps.len()).filter(|place| missing[*place] == 0).collect();
        let mut settled = vec![false; self.steps.len()];
        while let Some(place) = free.pop() {
            settled[place] = true;
            for follower in &self.followers[place] {
                missing[*follower] -= 1;
                if missing[*follower] == 0 {
                    free.push(*follower);
                }
            }
        }
        let Some(first) = settled.iter().position(|done| !done) else { return Ok(()) };
        // Each remaining step needs another remaining step: this walk along needs must return to a visited
        // step.
        let mut walk = vec![first];
        loop {
            let last = *walk.last().expect("the walk begins with a step");
            let next = *self.needs[last]
                .iter()
                .find(|need| !settled[**need])
                .expect("a step left needs a step left");
            if let Some(from) = walk.iter().position(|place| *place == next) {
                let mut cycle: Vec<_> =
                    walk[from..].iter().map(|place| self.steps[*place].id.clone()).collect();
                cycle.push(self.steps[next].id.clone());
                return Err(ShapeError::Cycle(cycle));
            }
            walk.push(next);
        }
    }

    /// Returns the number of steps without those for hooks of the run.
    pub fn counted(&self) -> u64 {
        (self.steps.len() - self.hooks.len()) as u64
    }

    /// Returns the steps in the given order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the place of a step.
    pub fn place(&self, id: &str) -> Option<usize> {
        self.places.get(id).copied()
    }

    /// Returns the step with this id.
    pub fn step(&self, id: &str) -> Option<&Step> {
        self.place(id).map(|place| &self.steps[place])
    }

    /// Returns whether this shape or a nested shape has this step.
    pub fn has_anywhere(&self, id: &StepId) -> bool {
        let below = |step: &Step| step.all_children().any(|children| children.shape.has_anywhere(id));
        self.place(id.as_str()).is_some() || self.steps.iter().any(below)
    }

    /// Returns whether this shape or a nested shape has steps with evidence.
    pub fn has_evidence(&self) -> bool {
        self.steps.iter().any(|step| {
            step.has_evidence() || step.all_children().any(|children| children.shape.has_evidence())
        })
    }

    /// Returns whether routes order the steps, beginning at a start step. Each step then receives the
    /// predecessor's state.
    pub fn is_routed(&self) -> bool {
        self.start.is_some()
    }

    /// Returns whether this shape, or the scopes of its steps, have non-idempotent steps.
    pub fn is_careful(&self) -> bool {
        self.steps.iter().any(|step| !step.idempotent || step.opens_careful())
    }

    /// Copies `idempotent: false` from the steps of `other`, at every depth.
    #[must_use]
    pub fn as_careful_as(mut self, other: &Self) -> Self {
        for step in &mut self.steps {
            let Some(other) = other.step(step.id.as_str()) else { continue };
            step.idempotent &= other.idempotent;
            for children in step.children.iter_mut().chain(&mut step.hooks) {
                let same = other.all_children().find(|other| other.name == children.name);
                if let Some(other) = same {
                    *children.shape = children.shape.as_ref().clone().as_careful_as(&other.shape);
                }
            }
        }
        self
    }

    /// Returns whether a person must confirm before a started step runs again. This is so if the step is not
    /// idempotent, or if `position` marks the step for confirmation after an upstream rerun.
    pub fn must_ask(&self, position: &Position, step: &StepId) -> bool {
        position.asks_about(step) || self.step(step.as_str()).is_some_and(|step| !step.idempotent)
    }

    /// Returns the limit of steps that run at once.
    pub fn parallel_max(&self) -> usize {
        self.parallel_max
    }

    /// Returns the graph of a scope: this shape for `main`, else the children's shape of the opening step.
    pub fn of_scope(&self, scope: &ScopePath) -> Option<&Self> {
        let Some((step, _)) = scope.opened_by() else { return Some(self) };
        let parent = self.of_scope(&scope.parent()?)?;
        parent.children_named(&step).map(|(_, children)| &*children.shape)
    }

    /// Returns the place of the step whose children are named after `name`.
    pub fn opener(&self, name: &StepId) -> Option<usize> {
        self.children_named(name).map(|(place, _)| place)
    }

    /// Returns the children named after `name`, and the place of the opening step.
    pub fn children_named(&self, name: &StepId) -> Option<(usize, &Children)> {
        let all = self.steps.iter().enumerate();
        let mut all =
            all.flat_map(|(place, step)| step.all_children().map(move |children| (place, children)));
        all.find(|(_, children)| children.name == *name)
    }

    /// Adds `by` to the level of this shape and of all nested shapes: for embedding in another program.
    pub fn raise_levels(&mut self, by: usize) {
        self.level += by;
        for children in self.steps.iter_mut().flat_map(|step| step.children.iter_mut().chain(&mut step.hooks))
        {
            children.shape.raise_levels(by);
        }
    }

    /// Returns the definition of each step, for the run record.
    pub fn definition(&self, text: Option<String>) -> Definition {
        let print = |step: &Step| StepPrint {
            id: step.id.clone(),
            fingerprint: step.fingerprint,
            leads_to: step.leads_to(),
        };
        let steps = self.steps.iter().map(print).collect();
        Definition { text, path: None, steps, accepted: std::collections::BTreeMap::new() }
    }

    /// Returns the places of a step's needs.
    pub fn needs(&self, place: usize) -> &[usize] {
        &self.needs[place]
    }

    /// Returns, by place, whether a step is the given step or is upstream of it.
    pub fn with_needs(&self, place: usize) -> Vec<bool> {
        let mut wanted = vec![false; self.steps.len()];
        let mut walk = vec![place];
        while let Some(place) = walk.pop() {
            if !std::mem::replace(&mut wanted[place], true) {
                walk.extend(&self.needs[place]);
            }
        }
        wanted
    }

    /// Returns the places of the direct dependents of a step.
    pub fn followers(&self, place: usize) -> &[usize] {
        &self.followers[place]
    }

    /// Returns the places of all steps downstream of the given steps, transitively.
    pub fn downstream(&self, places: &[usize]) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut open: Vec<usize> = places.to_vec();
        while let Some(place) = open.pop() {
            let next = self.followers(place).iter().filter(|next| found.insert(**next));
            open.extend(next.copied().collect::<Vec<_>>());
        }
        found
    }

    /// Returns all places in topological order. Independent steps keep the given order.
    pub fn order(&self) -> Vec<usize> {
        let mut missing: Vec<usize> = self.needs.iter().map(Vec::len).collect();
        let free = |(place, missing): (usize, &usize)| (*missing == 0).then_some(Reverse(place));
        let mut heap: BinaryHeap<Reverse<usize>> = missing.iter().enumerate().filter_map(free).collect();
        let mut order = Vec::with_capacity(self.steps.len());
        while let Some(Reverse(place)) = heap.pop() {
            order.push(place);
            for follower in &self.followers[place] {
                missing[*follower] -= 1;
                if missing[*follower] == 0 {
                    heap.push(Reverse(*follower));
                }
            }
        }
        order
    }

    /// Returns the route targets of a step.
    pub fn routes(&self, place: usize) -> &[usize] {
        &self.routes[place]
    }

    /// Returns whether both steps lie on one loop.
    pub fn share_loop(&self, one: usize, other: usize) -> bool {
        self.loops.share(one, other)
    }

    /// Returns the iteration of a step reached from another step.
    ///
    /// `iteration`: the predecessor's iteration; the first `around` counts belong to loops around the whole
    /// scope.
    pub fn iteration(&self, from: usize, to: usize, iteration: &[u32], around: usize) -> Vec<u32> {
        self.loops.passes(from, to, iteration, around)
    }

    /// Returns the first iteration of a step; `around` is the iteration of the scope.
    pub fn first_iteration(&self, place: usize, around: &[u32]) -> Vec<u32> {
        self.loops.first_passes(place, around)
    }

    /// Returns whether a scope lies inside a loop whose scopes have non-idempotent steps.
    pub(crate) fn has_careful_passes(&self, scope: &ScopePath) -> bool {
        let mut up = std::iter::successors(Some(scope.clone()), ScopePath::parent);
        up.any(|scope| {
            let parent = scope.parent().zip(scope.opened_by());
            let opener = parent.and_then(|(parent, (name, _))| {
                let shape = self.of_scope(&parent)?;
                Some((shape, shape.opener(&name)?))
            });
            opener.is_some_and(|(shape, place)| {
                shape.share_loop(place, place) && shape.steps()[place].opens_careful()
            })
        })
    }

    /// Returns the passes of the loops around a scope of this graph, taken from a frontier entry.
    pub fn passes_around<'p>(&self, position: &'p Position) -> &'p [u32] {
        let passes = position.frontier.iter().find_map(|entry| {
            let own = self.first_iteration(self.place(entry.step.as_str())?, &[]).len();
            entry.at.iteration.get(..entry.at.iteration.len().checked_sub(own)?)
        });
        passes.unwrap_or_default()
    }

    /// Returns the number of loops around a scope. Their passes are the first counts of each iteration.
    pub fn loops_around(&self, scope: &ScopePath) -> usize {
        let up = std::iter::successors(Some(scope.clone()), ScopePath::parent);
        let opened = up.filter_map(|scope| {
            let parent = self.of_scope(&scope.parent()?)?;
            let place = parent.opener(&scope.opened_by()?.0)?;
            Some(parent.first_iteration(place, &[]).len())
        });
        opened.sum()
    }

    /// Returns the steps that can start first: the start step, if set; else the steps without needs and
    /// without incoming routes; if all have incoming routes, the first step.
    pub fn roots(&self) -> Vec<usize> {
        if let Some(start) = self.start {
            return vec![start];
        }
        let mut led_to = vec![false; self.steps.len()];
        for (from, routes) in self.routes.iter().enumerate() {
            // A route of a step to itself does not keep the step from starting.
            routes.iter().filter(|place| **place != from).for_each(|place| led_to[*place] = true);
        }
        let free = |place: &usize| self.needs[*place].is_empty() && !led_to[*place];
        let roots: Vec<usize> = (0..self.steps.len()).filter(free).collect();
        if roots.is_empty() { vec![0] } else { roots }
    }
}

fn find_loops(followers: &[Vec<usize>], routes: &[Vec<usize>]) -> Loops {
    let onward: Vec<Vec<usize>> =
        followers.iter().zip(routes).map(|(needed, chosen)| [&needed[..], &chosen[..]].concat()).collect();
    let mut back = vec![Vec::new(); onward.len()];
    for (place, targets) in onward.iter().enumerate() {
        targets.iter().for_each(|target| back[*target].push(place));
    }
    Loops::find(&onward, &back)
}
