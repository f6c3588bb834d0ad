//! Builds a graph from steps, edges and forks, and validates the result once.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::context::Context;
use super::edges::{
    Outgoing, describe_edge, describe_fork, describe_route, print_of_starts, prints_of, targets_of,
};
use super::error::{GraphError, StepError};
use super::fork::{Each, Fork};
use super::join::Child;
use super::level::{
    ChildFn, DecodeFn, EvidenceFn, Held, JoinFn, Keeping, Level, Next, Node, Opens, RetryFn, RouteFn, State,
    StepAction, StepFn, Typed, to_value,
};
use super::{END, Graph};
use crate::engine::Item;
use crate::id::{Digest, StepId};
use crate::plan::shape::{Children, FailureLimits, OnChildFailure, Retry, Shape, Step};
use crate::record::Pack;
use crate::schema::Migrations;

/// Default for how many children of a fan-out run in parallel. Eight suits requests over a network from a single
/// machine.
pub const PARALLEL_DEFAULT: usize = 8;

/// The step inside each scope of [`Builder::each`].
pub const ITEM_STEP: &str = "item";
/// The key of the scope of [`Builder::subgraph`]. The key is fixed, so that the sub-graph can be renamed.
pub const SUBGRAPH_KEY: &str = "graph";

/// How a step opens scopes.
pub(super) enum FanOutKind<S> {
    /// Branches of this graph; each start step opens a branch.
    Fork { after: StepId, starts: Vec<StepId> },
    /// Scopes with another type of state and a finished shape: items or a sub-graph.
    Other(Box<Other<S>>),
}

pub(super) struct Other<S> {
    pub(super) shape: Shape,
    pub(super) levels: Vec<Arc<dyn Level>>,
    pub(super) named: Vec<(String, Option<StepId>)>,
    pub(super) opens: Opens<S>,
}

pub(super) struct StepDraft<S> {
    id: StepId,
    action: StepAction<S>,
    retry: Retry,
    timeout: Option<Duration>,
    idempotent: bool,
    revision: u32,
    retry_when: Option<RetryFn>,
    evidence: Option<EvidenceFn<S>>,
    fan: Option<FanOutKind<S>>,
    pub(super) parallel_max: usize,
    pub(super) on_failure: OnChildFailure,
}

/// The function of a step that borrows the resources of its graph: `async fn(T, Context, &Resources) -> Result<O, E>`.
///
/// Implemented for these functions; a program does not implement it.
pub trait UsingResources<'a, T, Resources, O>: Send + Sync + 'static {
    /// Calls the function.
    fn call(
        &self,
        input: T,
        context: Context,
        resources: &'a Resources,
    ) -> BoxFuture<'a, Result<O, StepError>>;
}

impl<'a, T, Resources, O, F, Fut, E> UsingResources<'a, T, Resources, O> for F
where
    Resources: 'a,
    F: Fn(T, Context, &'a Resources) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send + 'a,
    E: Into<StepError>,
{
    fn call(
        &self,
        input: T,
        context: Context,
        resources: &'a Resources,
    ) -> BoxFuture<'a, Result<O, StepError>> {
        self(input, context, resources).map(|end| end.map_err(Into::into)).boxed()
    }
}

/// Builds a [`Graph`]. Settings such as [`retry`](Self::retry) apply to the step added last.
///
/// `Resources`: the clients and settings that steps borrow; see [`Graph::with_resources`].
pub struct Builder<S, Resources = ()> {
    name: String,
    pub(super) resources: Arc<Resources>,
    pub(super) steps: Vec<StepDraft<S>>,
    /// The index of each step in `steps`.
    places: HashMap<StepId, usize>,
    outgoing: HashMap<StepId, Outgoing<S>>,
    /// The steps with outgoing edges, in the order of declaration.
    written: Vec<StepId>,
    start: Option<StepId>,
    keeping: Keeping<S>,
    /// Decodes the states of scopes for joins; set by `build`.
    pub(super) decode: Arc<OnceLock<DecodeFn<S>>>,
    problem: Option<GraphError>,
}

impl<S, Resources> std::fmt::Debug for Builder<S, Resources> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let steps: Vec<_> = self.steps.iter().map(|step| step.id.as_str()).collect();
        f.debug_struct("Builder").field("name", &self.name).field("steps", &steps).finish_non_exhaustive()
    }
}

/// Returns the schema version and the decoder for states with these migrations.
fn keeping<S: State>(migrations: Migrations) -> Keeping<S> {
    let schema = migrations.current();
    Keeping { schema, decode: Arc::new(move |bytes, found| Ok(migrations.read(found, bytes)?)) }
}

impl<S: State, Resources: Send + Sync + 'static> Builder<S, Resources> {
    pub(super) fn new(name: &str, resources: Resources) -> Self {
        Self {
            name: name.to_owned(),
            resources: Arc::new(resources),
            steps: Vec::new(),
            places: HashMap::new(),
            outgoing: HashMap::new(),
            written: Vec::new(),
            start: None,
            keeping: keeping(Migrations::default()),
            decode: Arc::default(),
            problem: None,
        }
    }

    /// Adds a step: a function that takes the state and returns the next state.
    ///
    /// The graph begins with the first step added, unless [`start`](Self::start) names another step. A step
    /// without an outgoing edge ends its scope. A crash may interrupt the function and a resume then runs the
    /// step again, so the function should be idempotent. Effects that must not be repeated go into
    /// [`Context::once`].
    #[must_use]
    pub fn step<F, Fut, E>(self, id: impl AsRef<str>, step: F) -> Self
    where
        F: Fn(S, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<S, E>> + Send + 'static,
        E: Into<StepError>,
    {
        let step: StepFn<S> =
            Arc::new(move |state, context| step(state, context).map(|end| end.map_err(Into::into)).boxed());
        self.add(id.as_ref(), StepAction::Step(step), None)
    }

    /// Adds a step together with its settings.
    ///
    /// ```
    /// # use waypost::{Context, Graph, Retry, StepError};
    /// # async fn fetch(state: u32, _: Context) -> Result<u32, StepError> { Ok(state) }
    /// Graph::<u32>::builder("import").step_with("fetch", fetch, |step| step.retry(Retry::exponential(3)));
    /// ```
    #[must_use]
    pub fn step_with<F, Fut, E>(
        self,
        id: impl AsRef<str>,
        step: F,
        settings: impl FnOnce(Self) -> Self,
    ) -> Self
    where
        F: Fn(S, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<S, E>> + Send + 'static,
        E: Into<StepError>,
    {
        settings(self.step(id, step))
    }

    /// Adds a step that borrows the resources of the graph: `async fn step(state: S, context: Context, resources: &Resources)`.
    /// See [`step`](Self::step) for the rest.
    #[must_use]
    pub fn step_using<F>(self, id: impl AsRef<str>, step: F) -> Self
    where
        F: for<'a> UsingResources<'a, S, Resources, S>,
    {
        let step = self.lend_resources(step);
        self.step(id, step)
    }

    /// Returns a function that lends the resources of the graph to `work`.
    fn lend_resources<T, O, F>(
        &self,
        work: F,
    ) -> impl Fn(T, Context) -> BoxFuture<'static, Result<O, StepError>>
    + Send
    + Sync
    + 'static
    + use<S, Resources, T, O, F>
    where
        T: Send + 'static,
        O: 'static,
        F: for<'a> UsingResources<'a, T, Resources, O>,
    {
        let (work, resources) = (Arc::new(work), Arc::clone(&self.resources));
        move |input, context| {
            let (work, resources) = (Arc::clone(&work), Arc::clone(&resources));
            async move { work.call(input, context, &resources).await }.boxed()
        }
    }

    pub(super) fn add(mut self, id: &str, action: StepAction<S>, fan: Option<FanOutKind<S>>) -> Self {
        let id = match StepId::new(id) {
            Ok(id) if id.as_str() == END => return self.wrong(GraphError::Reserved),
            Ok(id) => id,
            Err(error) => return self.wrong(error.into()),
        };
        if self.places.contains_key(&id) {
            return self.wrong(GraphError::Twice(id));
        }
        self.places.insert(id.clone(), self.steps.len());
        let (retry, timeout, idempotent, revision, retry_when) = (Retry::default(), None, true, 0, None);
        let (parallel_max, on_failure) = (PARALLEL_DEFAULT, OnChildFailure::Stop);
        self.steps.push(StepDraft {
            id,
            action,
            retry,
            timeout,
            idempotent,
            revision,
            retry_when,
            evidence: None,
            fan,
            parallel_max,
            on_failure,
        });
        self
    }

    /// Keeps the first problem; [`build`](Self::build) returns it.
    pub(super) fn wrong(mut self, problem: GraphError) -> Self {
        self.problem.get_or_insert(problem);
        self
    }

    fn last(mut self, setting: &'static str, set: impl FnOnce(&mut StepDraft<S>)) -> Self {
        match self.steps.last_mut() {
            Some(step) => {
                set(step);
                self
            }
            None => self.wrong(GraphError::NoStep(setting)),
        }
    }

    /// Retries the step after a failure, within the limits of `retry`.
    #[must_use]
    pub fn retry(self, retry: Retry) -> Self {
        self.last("retry", |step| step.retry = retry)
    }

    /// Retries the step only after errors for which `when` returns true.
    #[must_use]
    pub fn retry_when(self, when: impl Fn(&StepError) -> bool + Send + Sync + 'static) -> Self {
        self.last("retry_when", |step| step.retry_when = Some(Arc::new(when)))
    }

    /// Fails an attempt that takes longer than `timeout`. The future of the attempt is dropped at its next await
    /// point. Work that blocks the thread is not interrupted: a function that has returned by the time of the
    /// check counts as completed.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.last("timeout", |step| step.timeout = Some(timeout))
    }

    /// Adds evidence to the step: claims made from the output state, to be verified.
    ///
    /// The claims are checked when the step ends; pins are taken at the same time. The step fails, and is retried as
    /// `retry` allows, if a claim does not hold or cannot be checked, or if the pack is empty.
    ///
    /// A resume checks the claims again before it reuses the finished step. If a claim fails, the step runs again
    /// with its original input state. Downstream steps run again only if the output changes.
    ///
    /// The engine also calls `evidence` with the input state of an interrupted step, to learn the files that the
    /// step may have written. So `evidence` should be fast and read only the state.
    /// Paths are relative to [`Engine::with_base`](crate::Engine::with_base).
    #[must_use]
    pub fn evidence(self, evidence: impl Fn(&S) -> Pack + Send + Sync + 'static) -> Self {
        self.last("evidence", |step| step.evidence = Some(Arc::new(evidence)))
    }

    /// Marks a step, for example a payment, as not to be repeated unasked.
    ///
    /// The engine records the start before the step runs. The following ends leave the step in doubt, whatever
    /// [`retry`](Self::retry) says:
    ///
    /// - a crash, or a stop of the run,
    /// - a timeout,
    /// - a panic of the step, the route or the evidence,
    /// - an undeclared route,
    /// - a [`sleep`](Context::sleep) beyond [`SLEEP_IN_MEMORY_MAX`](super::SLEEP_IN_MEMORY_MAX), an
    ///   [`interrupt`](Context::interrupt) or a [`signal`](Context::signal): a wait restarts the step from the top. Wait in
    ///   an earlier step.
    ///
    /// The session then starts nothing more and ends as [`InDoubt`](crate::RunStatus::InDoubt). Other steps of that kind
    /// run to their end. The next resume returns [`RunError::InDoubt`](crate::RunError::InDoubt) until
    /// [`retry_doubtful`](super::Resume::retry_doubtful) or [`settle_doubtful`](super::Resume::settle_doubtful) decides.
    ///
    /// A returned error fails the step, and is retried like any other. Evidence that does not hold fails the step without a
    /// retry, and the next resume asks.
    #[must_use]
    pub fn not_idempotent(self) -> Self {
        self.last("not_idempotent", |step| step.idempotent = false)
    }

    /// Sets the revision of the step. A resume treats a run made with another revision as a changed definition.
    #[must_use]
    pub fn revision(self, revision: u32) -> Self {
        self.last("revision", |step| step.revision = revision)
    }

    /// Sets the migrations that read states of older programs. New states are written with the newest version.
    ///
    /// A state without a version is version 0; a state of a newer version is refused.
    #[must_use]
    pub fn migrations(mut self, migrations: Migrations) -> Self {
        self.keeping = keeping(migrations);
        self
    }

    /// Makes `id` the first step of the graph.
    #[must_use]
    pub fn start(mut self, id: impl AsRef<str>) -> Self {
        match StepId::new(id.as_ref()) {
            Ok(id) => self.start = Some(id),
            Err(why) => return self.wrong(GraphError::BadName { edge: "the start".to_owned(), why }),
        }
        self
    }

    /// Adds an edge from a step to another step, or to [`END`].
    #[must_use]
    pub fn edge(self, from: impl AsRef<str>, to: impl AsRef<str>) -> Self {
        let (from, to) = (from.as_ref(), to.as_ref());
        match StepId::new(to) {
            Ok(target) => self.lead(from, Outgoing::Edge(target)),
            Err(why) => self.wrong(GraphError::BadName { edge: describe_edge(from, to), why }),
        }
    }

    /// Adds an edge from each of these steps to the next.
    #[must_use]
    pub fn chain<T: AsRef<str>>(mut self, steps: impl IntoIterator<Item = T>) -> Self {
        let mut steps = steps.into_iter();
        let Some(mut from) = steps.next() else { return self };
        for to in steps {
            self = self.edge(&from, &to);
            from = to;
        }
        self
    }

    /// Adds a route: `choose` returns the next step from the state, out of `targets`. `targets` may include
    /// [`END`].
    ///
    /// The engine calls `choose` once, when the step completes, and records the choice. A choice outside
    /// `targets` fails the step, and so does a panic. A [`not_idempotent`](Self::not_idempotent) step is then in
    /// doubt.
    #[must_use]
    pub fn route<T: AsRef<str>, R: AsRef<str>>(
        self,
        from: impl AsRef<str>,
        targets: impl IntoIterator<Item = T>,
        choose: impl Fn(&S) -> R + Send + Sync + 'static,
    ) -> Self {
        let from = from.as_ref();
        match targets_of(targets, || describe_route(from)) {
            Ok(targets) => {
                let choose: RouteFn<S> = Arc::new(move |state| choose(state).as_ref().to_owned());
                self.lead(from, Outgoing::Route { targets, choose })
            }
            Err(problem) => self.wrong(problem),
        }
    }

    /// Connects a step with the join of its fork.
    pub(super) fn fork_way(self, after: &str, join: &str) -> Self {
        match StepId::new(join) {
            Ok(join) => self.lead(after, Outgoing::Fork(join)),
            // `add` has already recorded the invalid name of the join.
            Err(_) => self,
        }
    }

    fn lead(mut self, from: &str, edges: Outgoing<S>) -> Self {
        let from = match StepId::new(from) {
            Ok(from) => from,
            Err(why) => return self.wrong(GraphError::BadName { edge: edges.describe(from), why }),
        };
        if let Some(before) = self.outgoing.get(&from) {
            let (one, other) = (before.describe(from.as_str()), edges.describe(from.as_str()));
            return self.wrong(GraphError::TwoWays { step: from, one, other });
        }
        self.written.push(from.clone());
        self.outgoing.insert(from, edges);
        self
    }

    /// Forks the graph after a step: each start step opens a branch with a copy of the state. The branches run in
    /// parallel.
    ///
    /// A branch follows its edges until a step without an outgoing edge, or until the join.
    pub fn fork<T: AsRef<str>>(
        self,
        after: impl AsRef<str>,
        starts: impl IntoIterator<Item = T>,
    ) -> Fork<S, Resources> {
        let starts = starts.into_iter().map(|start| start.as_ref().to_owned()).collect();
        let after = after.as_ref().to_owned();
        Fork { builder: self, after, starts, on_failure: OnChildFailure::Stop, parallel_max: usize::MAX }
    }

    /// Opens a scope for each item, named by the key of the item, and runs `work` on the item.
    ///
    /// `items` and `key` are called once. The results are recorded before the first scope begins. The scopes
    /// are named `ID:KEY`; each has the single step [`ITEM_STEP`].
    pub fn each<T, R, W, Fut, E>(
        self,
        id: impl AsRef<str>,
        items: impl Fn(&S) -> Vec<T> + Send + Sync + 'static,
        key: impl Fn(&T) -> String + Send + Sync + 'static,
        work: W,
    ) -> Each<S, T, R, Resources>
    where
        T: State,
        R: State,
        W: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        E: Into<StepError>,
    {
        let work = move |mut child: Child<T, R>, context: Context| {
            work(child.item.clone(), context)
                .map(move |end| {
                    child.result = Some(end.map_err(Into::into)?);
                    Ok::<_, StepError>(child)
                })
                .boxed()
        };
        let items = move |state: &S| {
            let freeze = |item: &T| {
                let key = key(item);
                Ok(Item { value: to_value(&key, item)?, key, index: 0, start: None })
            };
            items(state).iter().map(freeze).collect()
        };
        let inner = Graph::<Child<T, R>>::builder(ITEM_STEP).step(ITEM_STEP, work);
        Each {
            builder: self,
            id: id.as_ref().to_owned(),
            items: Arc::new(items),
            inner,
            parallel_max: PARALLEL_DEFAULT,
            on_failure: OnChildFailure::Stop,
        }
    }

    /// As [`each`](Self::each), with work that borrows the resources of the graph:
    /// `async fn work(item: T, context: Context, resources: &Resources)`.
    pub fn each_using<T, R, W>(
        self,
        id: impl AsRef<str>,
        items: impl Fn(&S) -> Vec<T> + Send + Sync + 'static,
        key: impl Fn(&T) -> String + Send + Sync + 'static,
        work: W,
    ) -> Each<S, T, R, Resources>
    where
        T: State,
        R: State,
        W: for<'a> UsingResources<'a, T, Resources, R>,
    {
        let work = self.lend_resources(work);
        self.each(id, items, key, work)
    }

    /// Runs another graph as a step, in a scope with its own state. `enter` makes the state of the scope;
    /// `leave` merges the final state of the scope into the state of the parent.
    #[must_use]
    pub fn subgraph<T: State>(
        self,
        id: impl AsRef<str>,
        graph: &Graph<T>,
        enter: impl Fn(&S) -> T + Send + Sync + 'static,
        leave: impl Fn(&mut S, T) + Send + Sync + 'static,
    ) -> Self {
        let child: ChildFn<S> = Arc::new(move |state, _| Ok(Box::new(enter(state)) as Held));
        let inner = Arc::clone(&graph.levels[0]);
        let leave = Arc::new(leave);
        let join: JoinFn<S> = Arc::new(move |mut state, joined, _| {
            let (inner, leave) = (Arc::clone(&inner), Arc::clone(&leave));
            async move {
                let mut ends = joined.outcomes().await?;
                while let Some(end) = ends.next().await? {
                    let held = super::join::state_of(inner.as_ref(), &end.record)?;
                    let ended =
                        held.downcast::<T>().expect("a state goes back only to the level that made it");
                    leave(&mut state, *ended);
                }
                Ok(state)
            }
            .boxed()
        });
        let other = Other {
            shape: (*graph.shape).clone(),
            levels: graph.levels.to_vec(),
            named: vec![(SUBGRAPH_KEY.to_owned(), None)],
            opens: Opens { items: None, child },
        };
        self.add(id.as_ref(), StepAction::Join(join), Some(FanOutKind::Other(Box::new(other))))
    }

    /// Validates the steps and edges, and returns the graph.
    ///
    /// # Errors
    /// [`GraphError`] names the steps and edges at fault.
    pub fn build(mut self) -> Result<Graph<S>, GraphError> {
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        let first = self.steps.first().ok_or(GraphError::Empty)?.id.clone();
        let start = self.start.clone().unwrap_or(first);
        self.check_names(&start)?;
        let scopes = super::step_scopes::find(&self.outline(), &start)?;
        let name = self.name.clone();
        let namesakes = namesakes(&self.steps);
        let _ = self.decode.set(Arc::clone(&self.keeping.decode));
        let keeping = Arc::new(self.keeping);
        let mut assembly =
            Assembly { levels: vec![None], scopes, namesakes, keeping, outgoing: self.outgoing };
        let mut drafts: Vec<Option<StepDraft<S>>> = self.steps.into_iter().map(Some).collect();
        let shape = assembly.level(&mut drafts, 0, &start, 0)?;
        let levels = assembly.levels.into_iter().map(|level| level.expect("every level was made")).collect();
        let reading = super::decode_check::Reading::default();
        Ok(Graph { name, shape: Arc::new(shape), levels, reading, state: std::marker::PhantomData })
    }

    fn check_names(&self, start: &StepId) -> Result<(), GraphError> {
        let has = |id: &StepId| self.places.contains_key(id);
        let unknown =
            |edge: String, missing: &StepId| Err(GraphError::Unknown { edge, missing: missing.clone() });
        if !has(start) {
            return unknown("the start".to_owned(), start);
        }
        // In the order of declaration, so that the first error is deterministic.
        for (from, edges) in self.written.iter().map(|from| (from, &self.outgoing[from])) {
            if !has(from) {
                return unknown(edges.describe(from.as_str()), from);
            }
            if let Some(missing) = edges.targets().into_iter().find(|id| id.as_str() != END && !has(id)) {
                return unknown(edges.describe(from.as_str()), missing);
            }
        }
        for step in &self.steps {
            let Some(FanOutKind::Fork { after, starts }) = &step.fan else { continue };
            if let Some(missing) = std::iter::once(after).chain(starts).find(|id| !has(id)) {
                return unknown(describe_fork(after.as_str()), missing);
            }
        }
        Ok(())
    }

    /// Returns the steps and edges without functions, for validation.
    fn outline(&self) -> super::step_scopes::Outline {
        let place = |id: &StepId| self.places.get(id).copied();
        let outgoing = self.steps.iter().map(|step| match self.outgoing.get(&step.id) {
            Some(edges) => edges.targets().into_iter().map(place).collect(),
            None => Vec::new(),
        });
        let forks = self.steps.iter().map(|step| match &step.fan {
            Some(FanOutKind::Fork { after, starts }) => {
                Some((place(after).unwrap_or(0), starts.iter().filter_map(place).collect()))
            }
            _ => None,
        });
        super::step_scopes::Outline {
            ids: self.steps.iter().map(|step| step.id.clone()).collect(),
            outgoing: outgoing.collect(),
            forks: forks.collect(),
        }
    }
}

/// Returns the steps that give their name to child scopes: steps over items, sub-graphs, and the joins of forks
/// after these.
fn namesakes<S>(steps: &[StepDraft<S>]) -> HashSet<StepId> {
    let over_items = |step: &&StepDraft<S>| matches!(step.fan, Some(FanOutKind::Other(_)));
    let mut found: HashSet<StepId> = steps.iter().filter(over_items).map(|step| step.id.clone()).collect();
    loop {
        let joins = steps.iter().filter_map(|step| match &step.fan {
            Some(FanOutKind::Fork { after, .. }) if name_of_fork(&found, &step.id, after) == step.id => {
                Some(&step.id)
            }
            _ => None,
        });
        let more: Vec<StepId> = joins.filter(|id| !found.contains(*id)).cloned().collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Returns the step that names the branches of a fork. This is the step before the fork, or the join if the
/// children of that step already use its name.
fn name_of_fork(namesakes: &HashSet<StepId>, join: &StepId, after: &StepId) -> StepId {
    if namesakes.contains(after) { join.clone() } else { after.clone() }
}

/// Builds shapes and levels from drafts.
struct Assembly<S> {
    levels: Vec<Option<Arc<dyn Level>>>,
    /// By step, in the order of addition: the join of the enclosing fork; none in the main scope.
    scopes: Vec<Option<usize>>,
    /// The steps that give their name to child scopes.
    namesakes: HashSet<StepId>,
    keeping: Arc<Keeping<S>>,
    outgoing: HashMap<StepId, Outgoing<S>>,
}

impl<S: State> Assembly<S> {
    /// Builds the level of a scope: the main scope, or the branches of a fork.
    fn level(
        &mut self,
        drafts: &mut [Option<StepDraft<S>>],
        level: usize,
        start: &StepId,
        scope: usize,
    ) -> Result<Shape, GraphError> {
        let here = |place: &usize| self.scopes[*place] == (scope > 0).then(|| scope - 1);
        let places: Vec<usize> = (0..drafts.len()).filter(here).collect();
        let ids: Vec<StepId> = places.iter().map(|place| id_of(drafts, *place)).collect();
        let found: HashMap<&StepId, usize> = ids.iter().zip(0..).collect();
        let find = |id: &StepId| found.get(id).copied();
        let (mut steps, mut nodes) = (Vec::with_capacity(ids.len()), Vec::with_capacity(ids.len()));
        let outgoing: Vec<Option<Outgoing<S>>> = ids.iter().map(|id| self.outgoing.remove(id)).collect();
        for ((place, id), edges) in places.iter().zip(&ids).zip(outgoing) {
            let draft = drafts[*place].take().expect("a step has one scope");
            let edge_prints = edges.as_ref().map(|edges| edges.print(&find)).unwrap_or_default();
            let (next, routes) = self.next(edges, &find);
            let mut step = Step::new(id.clone(), Vec::new(), Digest::of_parts([]));
            step.routes = routes;
            step.may_end =
                matches!(&next, Next::Route { targets, .. } if targets.iter().any(|(_, to)| to.is_none()));
            (step.idempotent, step.retry, step.timeout) = (draft.idempotent, draft.retry, draft.timeout);
            step.claims = draft.evidence.is_some();
            let mut prints = vec![draft.revision.to_le_bytes().to_vec()];
            prints.extend(edge_prints);
            let (parallel_max, on_failure) = (draft.parallel_max, draft.on_failure);
            let opened = |name, shape, named| Children {
                name,
                shape,
                named,
                parallel_max,
                on_failure,
                by_work: false,
                limits: FailureLimits::default(),
                passes: false,
                whole: false,
            };
            let opens = match draft.fan {
                None => None,
                Some(FanOutKind::Fork { after, starts }) => {
                    let below = self.levels.len();
                    self.levels.push(None);
                    let shape = self.level(drafts, below, &starts[0], *place + 1)?;
                    let named = starts.iter().map(|id| (id.to_string(), Some(id.clone()))).collect();
                    prints.extend(prints_of(&shape));
                    prints.extend(print_of_starts(&shape, &starts));
                    let (name, shape) = (name_of_fork(&self.namesakes, id, &after), Box::new(shape));
                    step.children = Some(opened(name, shape, named));
                    let child: ChildFn<S> = Arc::new(|state: &S, _| Ok(Box::new(state.clone()) as Held));
                    Some(Opens { items: None, child })
                }
                Some(FanOutKind::Other(other)) => {
                    let Other { mut shape, levels, named, opens } = *other;
                    shape.raise_levels(self.levels.len());
                    self.levels.extend(levels.into_iter().map(Some));
                    prints.extend(prints_of(&shape));
                    let (name, shape) = (id.clone(), Box::new(shape));
                    step.children = Some(opened(name, shape, named));
                    Some(opens)
                }
            };
            step.fingerprint = Digest::of_parts(prints.iter().map(Vec::as_slice));
            steps.push(step);
            let (id, action, retry_when) = (id.clone(), draft.action, draft.retry_when);
            nodes.push(Node { id, action, next, opens, retry_when, evidence: draft.evidence });
        }
        let keeping = Keeping { schema: self.keeping.schema, decode: Arc::clone(&self.keeping.decode) };
        self.levels[level] = Some(Arc::new(Typed { nodes, keeping }));
        Ok(Shape::new(steps, usize::MAX)?.starting_with(start)?.at_level(level))
    }

    /// Resolves the outgoing edges of a step. A target outside this scope is the join, and ends the scope.
    fn next(
        &self,
        edges: Option<Outgoing<S>>,
        find: &impl Fn(&StepId) -> Option<usize>,
    ) -> (Next<S>, Vec<StepId>) {
        match edges {
            None => (Next::End, Vec::new()),
            Some(Outgoing::Edge(target) | Outgoing::Fork(target)) => match find(&target) {
                Some(place) => (Next::To(place), vec![target]),
                None => (Next::End, Vec::new()),
            },
            Some(Outgoing::Route { targets, choose }) => {
                let routes = targets.iter().filter(|id| find(id).is_some()).cloned().collect();
                let targets = targets.into_iter().map(|id| (id.clone(), find(&id))).collect();
                (Next::Route { targets, choose }, routes)
            }
        }
    }
}

fn id_of<S>(drafts: &[Option<StepDraft<S>>], place: usize) -> StepId {
    drafts[place].as_ref().expect("a step has one scope").id.clone()
}
