//! The shape of a workflow: steps, what they need, and what follows from that.
//!
//! A shape is a graph without what its steps do: it knows no state and runs nothing. It is checked once, when built;
//! afterwards every question about it has an answer. Steps are asked for by place (an index into [`Shape::steps`]) where
//! speed counts, by id elsewhere.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use crate::id::{BRANCH_DEPTH_MAX, BranchPath, Digest, InvalidName, StepId};
use crate::record::{Definition, Fan, FrontierEntry, Position, StepPrint};

mod children;
mod loops;
mod names;
mod retry;
mod unfinished;

pub use children::{Children, FailureLimits, OnChildFailure};
pub use retry::{Growth, Retry};
pub use unfinished::Unfinished;

use loops::Loops;

/// The name of the end, among those that a step leads to.
pub const END: &str = "end";

/// Most steps of one graph: bounds what a mistaken generator can ask for; a fan-out has its own, larger limit.
pub const STEPS_MAX: usize = 100_000;

/// One step of a graph: what the plan and the engine must know of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its id.
    pub id: StepId,
    /// Steps that must be finished before it starts.
    pub needs: Vec<StepId>,
    /// Those of them with which it is skipped if they are.
    pub skipped_with: Vec<StepId>,
    /// Steps that it may lead to by choice, back edges of loops included.
    pub routes: Vec<StepId>,
    /// It may also end its branch by choice.
    pub may_end: bool,
    /// It may be repeated after it was cut.
    pub idempotent: bool,
    /// How often and when it is tried again.
    pub retry: Retry,
    /// After so many cuts in a row, the step starts only alone; one more cut fails the step.
    pub cuts_max: u32,
    /// How long one try may take.
    pub timeout: Option<Duration>,
    /// Subjects of its evidence, by resolved path: what it is about to write.
    pub subjects: Vec<String>,
    /// It makes claims whose subjects only its state tells.
    pub claims: bool,
    /// What it opens before it runs, if it fans out: it then runs as the join, when all of them have ended.
    pub children: Option<Children>,
    /// What it opens after that, of a step whose branches are its work: those of [`Children::afterwards`].
    pub after: Option<Children>,
    /// SHA-256 over what it does.
    pub fingerprint: Digest,
    /// Of an opener, the same without the steps within it and without its list of items, where these have own digests.
    pub frame: Option<Digest>,
    /// SHA-256 over the list of items of an opener, if the list alone decides which items are the same.
    pub list: Option<Digest>,
}

/// The default of [`Step::cuts_max`].
pub const CUTS_MAX: u32 = 3;

impl Step {
    /// Makes a step that needs `needs`, may be repeated, and is tried once.
    pub fn new(id: StepId, needs: Vec<StepId>, fingerprint: Digest) -> Self {
        Self {
            id,
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
            after: None,
            fingerprint,
            frame: None,
            list: None,
        }
    }

    /// Returns where it leads by choice, sorted; the end has the name that no step has. None if it can only end.
    pub fn leads_to(&self) -> Vec<StepId> {
        let end = (self.may_end && !self.routes.is_empty())
            .then(|| StepId::new(END).expect("the end is called as a step might be"));
        let mut targets: Vec<StepId> = self.routes.iter().cloned().chain(end).collect();
        targets.sort();
        targets
    }

    /// Says whether it has evidence.
    pub fn has_evidence(&self) -> bool {
        self.claims || !self.subjects.is_empty()
    }

    /// Returns all that it opens: by its work, and after that.
    pub fn all_children(&self) -> impl Iterator<Item = &Children> {
        self.children.iter().chain(&self.after)
    }

    /// Returns what it opens after its work, if there is such.
    pub fn afterwards(&self) -> Option<&Children> {
        self.after.as_ref().or(self.children.as_ref().filter(|children| children.afterwards))
    }

    /// Returns what the branches of one of its fan-outs are.
    pub fn opened(&self, fan: &Fan) -> Option<&Children> {
        if fan.after { self.after.as_ref() } else { self.children.as_ref() }
    }

    /// Says whether it has begun where it stands, so that it or its branches may have done something.
    pub(crate) fn has_begun(&self, entry: &FrontierEntry) -> bool {
        entry.fan.is_some() || entry.is_unsettled() || self.is_later_pass(entry)
    }

    /// Says whether it is repeated, and stands at a pass after its first.
    pub(crate) fn is_later_pass(&self, entry: &FrontierEntry) -> bool {
        self.routes.contains(&self.id) && entry.at.iteration.last().is_some_and(|pass| *pass > 1)
    }

    /// Says whether a person must be asked before it is done after something that it needs was done again: it was done, or
    /// begun (`entry` is where it stands), and must not be repeated blindly, or what it opens.
    pub(crate) fn must_ask_again(&self, was_done: bool, entry: Option<&FrontierEntry>) -> bool {
        let is_careful = !self.idempotent || self.opens_careful();
        is_careful && (was_done || entry.is_some_and(|entry| self.has_begun(entry)))
    }

    /// Says whether the branches of its work have steps that must not be repeated blindly.
    pub fn opens_careful(&self) -> bool {
        self.children.as_ref().is_some_and(|children| !children.afterwards && children.shape.is_careful())
    }

    /// Says whether the first branches of the step are hooks.
    pub(crate) fn opens_hooks(&self) -> bool {
        self.children.as_ref().is_some_and(|children| children.afterwards)
    }

    /// Says whether the branches that it opens first have steps with evidence.
    pub fn opens_evidence(&self) -> bool {
        self.children.as_ref().is_some_and(|children| children.shape.has_evidence())
    }
}

/// Why steps are not a graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// There is nothing to do.
    #[error("the graph has no steps")]
    Empty,
    /// Too many steps.
    #[error("the graph has {0} steps, {STEPS_MAX} are allowed")]
    TooMany(usize),
    /// Branches in branches, deeper than records can name them.
    #[error("the branches of step `{0}` nest deeper than the {BRANCH_DEPTH_MAX} levels allowed")]
    TooDeep(StepId),
    /// A branch that no record can name.
    #[error("a branch of step `{step}` cannot be: {why}")]
    BranchName {
        /// The step that opens it.
        step: StepId,
        /// What is wrong with its key.
        why: InvalidName,
    },
    /// Two steps of one id.
    #[error("step `{0}` is there twice")]
    Twice(StepId),
    /// Two steps whose branches records could not tell apart.
    #[error("the branches of two steps are named after step `{0}`")]
    SameBranches(StepId),
    /// A need or route that is no step.
    #[error("step `{step}` {names} `{target}`, which the graph does not have")]
    Unknown {
        /// The step that names it.
        step: StepId,
        /// `needs` or `leads to`.
        names: &'static str,
        /// What it names.
        target: StepId,
    },
    /// A start that is no step.
    #[error("the graph begins with `{0}`, which it does not have")]
    NoStart(StepId),
    /// Steps that wait for each other.
    #[error("steps wait for each other: {}", .0.iter().map(StepId::as_str).collect::<Vec<_>>().join(" needs "))]
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
    /// How deep branches nest in it.
    depth: usize,
}

impl Shape {
    /// Checks `steps` and makes them a graph in which at most `parallel_max` steps run at once.
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
        };
        shape.refuse_cycles()?;
        Ok(shape)
    }

    /// Begins with that step, which routes may lead back to.
    ///
    /// # Errors
    /// [`ShapeError::NoStart`]: there is no such step.
    pub fn starting_with(mut self, step: &StepId) -> Result<Self, ShapeError> {
        self.start = Some(self.place(step.as_str()).ok_or_else(|| ShapeError::NoStart(step.clone()))?);
        Ok(self)
    }

    /// Numbers the shape among those of its program, so that the program can tell whose step it is asked about.
    #[must_use]
    pub fn at_level(mut self, level: usize) -> Self {
        self.level = level;
        self
    }

    /// Lets one failure keep all steps of the shape from starting that have not, needed by them or not.
    #[must_use]
    pub fn failing_fast(mut self, fails_fast: bool) -> Self {
        self.fails_fast = fails_fast;
        self
    }

    /// Says whether one failure keeps all other steps from starting.
    pub fn fails_fast(&self) -> bool {
        self.fails_fast
    }

    /// Returns the number given by [`at_level`](Self::at_level); 0 if none was.
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
        // Every step left needs another one left: walking needs must come back to where it was.
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

    /// Returns the steps in the order in which they were given.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the place of a step.
    pub fn place(&self, id: &str) -> Option<usize> {
        self.places.get(id).copied()
    }

    /// Returns the step of this id.
    pub fn step(&self, id: &str) -> Option<&Step> {
        self.place(id).map(|place| &self.steps[place])
    }

    /// Says whether this shape or one below it has such a step.
    pub fn has_anywhere(&self, id: &StepId) -> bool {
        let below = |step: &Step| step.all_children().any(|children| children.shape.has_anywhere(id));
        self.place(id.as_str()).is_some() || self.steps.iter().any(below)
    }

    /// Says whether this shape or one below it has steps with evidence.
    pub fn has_evidence(&self) -> bool {
        self.steps.iter().any(|step| {
            let after = step.after.as_ref();
            step.has_evidence()
                || step.opens_evidence()
                || after.is_some_and(|children| children.shape.has_evidence())
        })
    }

    /// Says whether its steps come one after the other, from a start on, as routes lead: then each is given the state of
    /// the one before.
    pub fn is_routed(&self) -> bool {
        self.start.is_some()
    }

    /// Says whether there are steps that must not be repeated blindly, on branches of its steps too.
    pub fn is_careful(&self) -> bool {
        self.steps.iter().any(|step| !step.idempotent || step.opens_careful())
    }

    /// Says whether a person must be asked before a step that has been started is done once more: it must not be repeated
    /// blindly, or was done before something that it needs was done again and has such steps on its branches.
    pub fn must_ask(&self, position: &Position, step: &StepId) -> bool {
        position.asks_about(step) || self.step(step.as_str()).is_some_and(|step| !step.idempotent)
    }

    /// Returns how many steps may run at once.
    pub fn parallel_max(&self) -> usize {
        self.parallel_max
    }

    /// Returns the graph that a branch walks: this one for `main`, a step's children for a branch that it opened.
    pub fn of_branch(&self, branch: &BranchPath) -> Option<&Self> {
        let Some((step, _)) = branch.opened_by() else { return Some(self) };
        let parent = self.of_branch(&branch.parent()?)?;
        parent.children_named(&step).map(|(_, children)| &*children.shape)
    }

    /// Returns the place of the step whose children are named after `name`.
    pub fn opener(&self, name: &StepId) -> Option<usize> {
        self.children_named(name).map(|(place, _)| place)
    }

    /// Returns the children that are named after `name`, and the place of the step that opens them.
    pub fn children_named(&self, name: &StepId) -> Option<(usize, &Children)> {
        let all = self.steps.iter().enumerate();
        let mut all =
            all.flat_map(|(place, step)| step.all_children().map(move |children| (place, children)));
        all.find(|(_, children)| children.name == *name)
    }

    /// Adds `by` to the numbers of this shape and of all below it: for one that becomes a part of another.
    pub fn raise_levels(&mut self, by: usize) {
        self.level += by;
        for children in self.steps.iter_mut().flat_map(|step| step.children.iter_mut().chain(&mut step.after))
        {
            children.shape.raise_levels(by);
        }
    }

    /// Returns what each step means, for the run record.
    pub fn definition(&self, text: Option<String>) -> Definition {
        let print = |step: &Step| StepPrint {
            id: step.id.clone(),
            fingerprint: step.fingerprint,
            leads_to: step.leads_to(),
        };
        let steps = self.steps.iter().map(print).collect();
        Definition { text, path: None, steps, accepted: std::collections::BTreeMap::new() }
    }

    /// Returns the places of the steps that a step waits for.
    pub fn needs(&self, place: usize) -> &[usize] {
        &self.needs[place]
    }

    /// Says, by place, which steps a step needs, directly or not; itself included.
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

    /// Returns the places of the steps that wait for a step.
    pub fn followers(&self, place: usize) -> &[usize] {
        &self.followers[place]
    }

    /// Returns the places of the steps downstream of some steps, over any number of steps between.
    pub fn downstream(&self, places: &[usize]) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut open: Vec<usize> = places.to_vec();
        while let Some(place) = open.pop() {
            let next = self.followers(place).iter().filter(|next| found.insert(**next));
            open.extend(next.copied().collect::<Vec<_>>());
        }
        found
    }

    /// Returns all places in an order in which every step comes after what it needs; steps that are free of each other
    /// stay in the order in which they were given.
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

    /// Returns the steps that a step may lead to by choice.
    pub fn routes(&self, place: usize) -> &[usize] {
        &self.routes[place]
    }

    /// Says whether both steps lie on one loop.
    pub fn share_loop(&self, one: usize, other: usize) -> bool {
        self.loops.share(one, other)
    }

    /// Returns the place in loops of a step that is reached from another one.
    ///
    /// `iteration`: that of the step before; its first `around` counts belong to loops around the whole branch.
    pub fn iteration(&self, from: usize, to: usize, iteration: &[u32], around: usize) -> Vec<u32> {
        self.loops.passes(from, to, iteration, around)
    }

    /// Returns the place in loops of a step that a branch begins with; `around` is that of the branch.
    pub fn first_iteration(&self, place: usize, around: &[u32]) -> Vec<u32> {
        self.loops.first_passes(place, around)
    }

    /// Says whether a branch lies within passes of something whose branches have steps that must not be repeated blindly.
    pub(crate) fn has_careful_passes(&self, branch: &BranchPath) -> bool {
        let mut up = std::iter::successors(Some(branch.clone()), BranchPath::parent);
        up.any(|branch| {
            let parent = branch.parent().zip(branch.opened_by());
            let opener = parent.and_then(|(parent, (name, _))| {
                let shape = self.of_branch(&parent)?;
                Some((shape, shape.opener(&name)?))
            });
            opener.is_some_and(|(shape, place)| {
                shape.share_loop(place, place) && shape.steps()[place].opens_careful()
            })
        })
    }

    /// Returns the passes of the loops around a branch that walks this graph, as the steps that it stands at have them.
    pub fn passes_around<'p>(&self, position: &'p Position) -> &'p [u32] {
        let passes = position.frontier.iter().find_map(|entry| {
            let own = self.first_iteration(self.place(entry.step.as_str())?, &[]).len();
            entry.at.iteration.get(..entry.at.iteration.len().checked_sub(own)?)
        });
        passes.unwrap_or_default()
    }

    /// Returns how many loops are around the steps of a branch: their passes stand first in each of their iterations.
    pub fn loops_around(&self, branch: &BranchPath) -> usize {
        let up = std::iter::successors(Some(branch.clone()), BranchPath::parent);
        let opened = up.filter_map(|branch| {
            let parent = self.of_branch(&branch.parent()?)?;
            let place = parent.opener(&branch.opened_by()?.0)?;
            Some(parent.first_iteration(place, &[]).len())
        });
        opened.sum()
    }

    /// Returns the steps that can start when nothing is finished: the one chosen as start; else those without needs that
    /// no route leads to; if all are led to, the first.
    pub fn roots(&self) -> Vec<usize> {
        if let Some(start) = self.start {
            return vec![start];
        }
        let mut led_to = vec![false; self.steps.len()];
        for (from, routes) in self.routes.iter().enumerate() {
            // One that may lead to itself begins all the same.
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
