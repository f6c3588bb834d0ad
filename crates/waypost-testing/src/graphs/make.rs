//! Makes a random graph from a seed, with steps that log their external effects.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waypost::graph::{Branches, Builder, ItemEnds};
use waypost::{Context, END, Graph, Retry, StepError};

use crate::random::seed::Seeded;

/// Maximum nesting depth of graphs.
const DEPTH: u64 = 3;
/// Number of notes at which every loop ends, whatever its route returns.
const DONE_MAX: usize = 200;

/// A state that lists the finished work.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Notes {
    pub(super) done: Vec<String>,
}

/// External effects, by scope, step and iteration.
#[derive(Debug, Default)]
pub(super) struct ExternalEffects {
    /// Number of executions.
    pub(super) ran: Mutex<BTreeMap<String, u32>>,
    /// Idempotency keys of the effects.
    pub(super) effects: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Number of non-idempotent effects.
    pub(super) paid: Mutex<BTreeMap<String, u32>>,
    /// Whether broken steps now succeed.
    pub(super) is_mended: AtomicBool,
}

impl ExternalEffects {
    /// Counts an execution of a step and returns the new count.
    fn runs(&self, context: &Context) -> u32 {
        let mut ran = self.ran.lock().unwrap();
        let times = ran.entry(name_of(context)).or_default();
        *times += 1;
        *times
    }

    fn has_effect(&self, context: &Context) {
        let mut effects = self.effects.lock().unwrap();
        effects.entry(name_of(context)).or_default().insert(context.idempotency_key());
    }

    fn pays(&self, context: &Context) {
        *self.paid.lock().unwrap().entry(name_of(context)).or_default() += 1;
    }

    fn is_mended(&self) -> bool {
        self.is_mended.load(Ordering::SeqCst)
    }
}

fn name_of(context: &Context) -> String {
    format!("{}/{}{:?}", context.scope(), context.step(), context.iteration())
}

/// A graph, the log of its effects, and its holds.
pub(super) struct Made {
    pub(super) graph: Graph<Notes>,
    pub(super) external: Arc<ExternalEffects>,
    pub(super) before: Vec<String>,
    pub(super) after: Vec<String>,
}

impl Made {
    /// Makes the graph of a seed. The graph is deterministic; the effects log is new.
    pub(super) fn of(seed: u64) -> Self {
        let external = Arc::<ExternalEffects>::default();
        let mut maker = Maker { random: Seeded::new(seed), external: external.clone(), made: 0 };
        let (builder, piece) = maker.piece(Graph::builder("random"), DEPTH, FailingStep::Mended);
        let graph = builder.edge(&piece.last, END).start(&piece.first).build().unwrap();
        let names: Vec<_> = graph.shape().steps().iter().map(|step| step.id.to_string()).collect();
        let mut hold = || {
            let chosen = maker.random.below(3 * names.len() as u64) as usize;
            names.get(chosen).cloned().into_iter().collect()
        };
        let (before, after) = (hold(), hold());
        Self { graph, external, before, after }
    }
}

/// The failures that a piece may contain, chosen so that the result does not depend on the order of failures.
#[derive(Debug, Clone, Copy, PartialEq)]
enum FailingStep {
    /// Failures that end the run until mended.
    Mended,
    /// Permanent failures, directly in a scope of a collecting fork.
    Collected,
    Never,
}

/// The first and last step of a piece of a graph.
struct Piece {
    first: String,
    last: String,
}

impl Piece {
    fn step(name: &str) -> Self {
        Self { first: name.to_owned(), last: name.to_owned() }
    }
}

/// The behaviour of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Does {
    Note,
    FailOnce,
    Keep,
    Ask,
    Pay,
    Break,
    Die,
}

struct Maker {
    random: Seeded,
    external: Arc<ExternalEffects>,
    made: u32,
}

impl Maker {
    fn name(&mut self) -> String {
        self.made += 1;
        format!("s{}", self.made)
    }

    /// Adds a step with a random behaviour.
    fn step(&mut self, builder: Builder<Notes>, failing: FailingStep) -> (Builder<Notes>, Piece) {
        let does = match (self.random.below(11), failing) {
            (0 | 1, _) => Does::FailOnce,
            (2 | 3, _) => Does::Keep,
            (4 | 5, _) => Does::Ask,
            (6 | 7, _) => Does::Pay,
            (8, FailingStep::Mended) => Does::Break,
            (8, FailingStep::Collected) => Does::Die,
            _ => Does::Note,
        };
        let (name, external) = (self.name(), self.external.clone());
        let builder = builder.step(&name, move |state: Notes, context: Context| {
            let external = external.clone();
            async move {
                let noted = work(does, &external, &context).await?;
                Ok::<_, StepError>(Notes { done: [state.done, vec![noted]].concat() })
            }
        });
        let builder = builder.retry(Retry::fixed(1, Duration::ZERO));
        let builder = if does == Does::Pay { builder.not_idempotent() } else { builder };
        (builder, Piece::step(&name))
    }

    /// Adds a random piece with at most this nesting depth.
    fn piece(
        &mut self,
        builder: Builder<Notes>,
        depth: u64,
        failing: FailingStep,
    ) -> (Builder<Notes>, Piece) {
        match if depth == 0 { 0 } else { self.random.below(8) } {
            0 | 1 => self.step(builder, failing),
            2 | 3 => {
                let (builder, one) = self.piece(builder, depth - 1, failing);
                let (builder, other) = self.piece(builder, depth - 1, failing);
                (builder.edge(&one.last, &other.first), Piece { first: one.first, last: other.last })
            }
            4 => self.fork(builder, depth, failing),
            5 => self.loops(builder, depth, failing),
            6 => self.inner(builder, depth, failing),
            _ => self.each(builder, failing),
        }
    }

    fn fork(&mut self, builder: Builder<Notes>, depth: u64, failing: FailingStep) -> (Builder<Notes>, Piece) {
        let (mut builder, before) = self.step(builder, failing);
        let collects = self.random.below(2) == 0;
        let within = match (collects, failing) {
            (true, _) => FailingStep::Collected,
            (false, FailingStep::Mended) => FailingStep::Mended,
            (false, _) => FailingStep::Never,
        };
        let mut starts = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let (with, piece) = self.piece(builder, depth - 1, within);
            builder = with;
            starts.push(piece.first);
        }
        let (join, external) = (self.name(), self.external.clone());
        let fork = builder.fork(&before.last, starts).max_parallel(1 + self.random.below(3) as usize);
        let fork = if collects { fork.collect() } else { fork };
        let builder =
            fork.join(&join, move |mut state: Notes, branches: Branches<Notes>, context: Context| {
                external.runs(&context);
                external.has_effect(&context);
                let at = state.done.len();
                for branch in branches {
                    let told = branch.result.map(|ended| ended.done[at..].join("+"));
                    state.done.push(format!(
                        "{}={}",
                        branch.key,
                        told.unwrap_or_else(|f| f.error.join(": "))
                    ));
                }
                async move { Ok::<_, StepError>(state) }
            });
        (builder, Piece { first: before.first, last: join })
    }

    /// Adds a loop with two or three iterations.
    fn loops(
        &mut self,
        builder: Builder<Notes>,
        depth: u64,
        failing: FailingStep,
    ) -> (Builder<Notes>, Piece) {
        let (builder, body) = self.piece(builder, depth - 1, failing);
        let (builder, gate) = self.step(builder, failing);
        let (builder, exit) = self.step(builder, failing);
        let passes = 2 + self.random.below(2) as usize;
        let (mark, first, out) = (gate.first.clone(), body.first.clone(), exit.first.clone());
        let targets = [first.clone(), out.clone()];
        let builder =
            builder.edge(&body.last, &gate.first).route(&gate.last, targets, move |state: &Notes| {
                let is_mark = |done: &&String| {
                    done.strip_prefix(&mark).is_some_and(|rest| matches!(rest, "" | "o" | "!"))
                };
                let again =
                    state.done.iter().filter(is_mark).count() % passes != 0 && state.done.len() < DONE_MAX;
                if again { first.clone() } else { out.clone() }
            });
        (builder, Piece { first: body.first, last: exit.last })
    }

    /// Adds a nested graph.
    fn inner(
        &mut self,
        builder: Builder<Notes>,
        depth: u64,
        failing: FailingStep,
    ) -> (Builder<Notes>, Piece) {
        let (inner, piece) = self.piece(Graph::builder("inner"), depth - 1, failing);
        let inner = inner.edge(&piece.last, END).start(&piece.first).build().unwrap();
        let name = self.name();
        let leave = |state: &mut Notes, inner: Notes| {
            let at = state.done.len();
            state.done.extend_from_slice(&inner.done[at..]);
        };
        (builder.subgraph(&name, &inner, |state: &Notes| state.clone(), leave), Piece::step(&name))
    }

    fn each(&mut self, builder: Builder<Notes>, failing: FailingStep) -> (Builder<Notes>, Piece) {
        let (name, count) = (self.name(), self.random.below(5) as u32);
        let collects = failing != FailingStep::Mended || self.random.below(2) == 0;
        let (external, joined) = (self.external.clone(), self.external.clone());
        let work = move |n: u32, context: Context| {
            external.runs(&context);
            let fails = n == 3 && (collects || !external.is_mended());
            if !fails {
                external.has_effect(&context);
            }
            async move { if fails { Err(io::Error::other("three")) } else { Ok(n) } }
        };
        let each =
            builder.each(&name, move |_: &Notes| (0..count).collect(), |n: &u32| format!("k/{n}"), work);
        let each = if collects { each.collect() } else { each };
        let each = each.max_parallel(1 + self.random.below(3) as usize);
        let builder = each.join(move |mut state: Notes, mut ends: ItemEnds<u32, u32>, context: Context| {
            joined.runs(&context);
            joined.has_effect(&context);
            async move {
                let mut told = Vec::new();
                while let Some(end) = ends.next().await? {
                    told.push(end.result.map_or_else(|failure| failure.error[0].clone(), |n| n.to_string()));
                }
                state.done.push(told.join(","));
                Ok::<_, StepError>(state)
            }
        });
        (builder, Piece::step(&name))
    }
}

/// Performs the work of a step and returns its note.
async fn work(does: Does, external: &ExternalEffects, context: &Context) -> Result<String, StepError> {
    let times = external.runs(context);
    let mut noted = context.step().to_string();
    match does {
        Does::FailOnce if times == 1 => return Err(io::Error::other("once more").into()),
        Does::Break if !external.is_mended() => return Err(StepError::fatal("broken until it is mended")),
        Does::Die => return Err(StepError::fatal("broken for good")),
        Does::Keep => {
            let kept: String = context.once("kept", async { Ok::<_, StepError>("o".to_owned()) }).await?;
            noted += &kept;
        }
        Does::Ask => {
            let answer: String = context.interrupt("ask", "?").await?;
            noted += &answer;
        }
        Does::Pay => {
            external.pays(context);
            return Ok(noted);
        }
        Does::Note | Does::FailOnce | Does::Break => {}
    }
    external.has_effect(context);
    Ok(noted)
}
