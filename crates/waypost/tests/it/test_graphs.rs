//! Graphs for tests: states that note their history, and steps that log their names and hang or fail on request.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use waypost::engine::{Outcome, RunError};
use waypost::graph::{Branches, Builder};
use waypost::{Context, Graph, StepError};

use crate::faulty::World;

/// A state that lists the steps applied to it.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Notes {
    pub(crate) done: Vec<String>,
}

impl Notes {
    pub(crate) fn and(mut self, text: impl Into<String>) -> Self {
        self.done.push(text.into());
        self
    }
}

/// The log of the steps, and their instructions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stage(Arc<Mutex<Told>>);

#[derive(Debug, Default)]
struct Told {
    said: Vec<String>,
    hangs: BTreeSet<String>,
    fails: BTreeMap<String, u32>,
}

impl Stage {
    pub(crate) fn say(&self, text: impl Into<String>) {
        self.0.lock().unwrap().said.push(text.into());
    }

    /// Returns the log since the last call, in order.
    pub(crate) fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().said)
    }

    /// The same, sorted, for parallel steps.
    pub(crate) fn said_sorted(&self) -> Vec<String> {
        let mut said = self.said();
        said.sort();
        said
    }

    pub(crate) fn has_said(&self, text: &str) -> bool {
        self.0.lock().unwrap().said.iter().any(|said| said == text)
    }

    /// Makes the step with this log text hang until `let_go`.
    pub(crate) fn hang(&self, text: &str) {
        self.0.lock().unwrap().hangs.insert(text.to_owned());
    }

    /// Makes the step with this log text fail this many times.
    pub(crate) fn fail(&self, text: &str, times: u32) {
        self.0.lock().unwrap().fails.insert(text.to_owned(), times);
    }

    pub(crate) fn let_go(&self) {
        let mut told = self.0.lock().unwrap();
        told.hangs.clear();
        told.fails.clear();
    }

    /// Logs `text`, and follows its instruction.
    pub(crate) async fn pass(&self, text: &str) -> Result<(), StepError> {
        self.say(text);
        let hangs = self.0.lock().unwrap().hangs.contains(text);
        if hangs {
            pending::<()>().await;
        }
        let mut told = self.0.lock().unwrap();
        match told.fails.get_mut(text) {
            Some(left) if *left > 0 => {
                *left -= 1;
                Err(io::Error::other(format!("{text} is broken")).into())
            }
            _ => Ok(()),
        }
    }

    /// A step that logs and notes its name.
    pub(crate) fn note(
        &self,
    ) -> impl Fn(Notes, Context) -> BoxFuture<'static, Result<Notes, StepError>> + Send + Sync + use<> {
        let stage = self.clone();
        move |state, context| {
            let stage = stage.clone();
            Box::pin(async move {
                let name = context.step().to_string();
                stage.pass(&name).await?;
                Ok(state.and(name))
            })
        }
    }

    /// A step that asks, and notes the answer.
    pub(crate) fn ask(
        &self,
    ) -> impl Fn(Notes, Context) -> BoxFuture<'static, Result<Notes, StepError>> + Send + Sync + use<> {
        let stage = self.clone();
        move |state, context| {
            let stage = stage.clone();
            Box::pin(async move {
                let name = context.step().to_string();
                stage.pass(&name).await?;
                let answer: String = context.interrupt("ask", format!("may {name}?")).await?;
                Ok(state.and(format!("{name}:{answer}")))
            })
        }
    }

    /// A join that logs its name and notes the end of each scope.
    pub(crate) fn merge(
        &self,
    ) -> impl Fn(Notes, Branches<Notes>, Context) -> BoxFuture<'static, Result<Notes, StepError>>
    + Send
    + Sync
    + use<> {
        let stage = self.clone();
        move |mut state, branches, context| {
            let stage = stage.clone();
            Box::pin(async move {
                stage.pass(context.step().as_str()).await?;
                let before = state.done.len();
                for branch in branches {
                    let told = match branch.result {
                        Ok(ended) => ended.done[before..].join("+"),
                        Err(failure) => format!("!{}", failure.error.join(": ")),
                    };
                    state.done.push(format!("{}={told}", branch.key));
                }
                Ok(state)
            })
        }
    }

    /// Adds steps that log and note their names.
    pub(crate) fn steps(&self, mut builder: Builder<Notes>, names: &[&str]) -> Builder<Notes> {
        for name in names {
            builder = builder.step(name, self.note());
        }
        builder
    }

    /// `a` then `b` then `c`.
    pub(crate) fn line(&self) -> Graph<Notes> {
        let builder = self.steps(Graph::builder("line"), &["a", "b", "c"]);
        builder.edge("a", "b").edge("b", "c").build().unwrap()
    }

    /// `plan`, then the scopes `a` (`a`, `a2`) and `b`, then `merge` and `after`.
    pub(crate) fn fork(&self) -> Graph<Notes> {
        let builder = self.steps(Graph::builder("fork"), &["plan", "a", "a2", "b"]).edge("a", "a2");
        let builder = builder.fork("plan", ["a", "b"]).join("merge", self.merge());
        builder.step("after", self.note()).edge("merge", "after").build().unwrap()
    }

    /// Runs until a step logs `at` and hangs there, and all other possible work is done; then crashes.
    pub(crate) async fn crash<S: std::fmt::Debug>(
        &self,
        world: &mut World,
        at: &str,
        session: impl AsyncFnOnce(&World) -> Result<Outcome<S>, RunError>,
    ) {
        self.hang(at);
        let hanging = async {
            while !self.has_said(at) {
                tokio::task::yield_now().await;
            }
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            outcome = session(world) => panic!("it ended by itself: {outcome:?}"),
            () = hanging => {}
        }
        self.let_go();
        world.reopen();
    }

    /// Starts run `r`, and crashes as [`crash`](Self::crash).
    pub(crate) async fn crash_run(&self, world: &mut World, graph: &Graph<Notes>, at: &str) {
        self.crash(world, at, async |world| world.engine.run(graph, "r", Notes::default()).await).await;
    }

    /// Resumes run `r`, and crashes as [`crash`](Self::crash).
    pub(crate) async fn crash_resume(&self, world: &mut World, graph: &Graph<Notes>, at: &str) {
        self.crash(world, at, async |world| world.engine.resume(graph, "r").into_future().await).await;
    }
}
