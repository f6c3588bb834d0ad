//! Random graphs, crashed at every write and again: they end as the run that never crashed, and no step that was
//! recorded as finished runs again.
//!
//! `WAYPOST_GRAPHS=10000 cargo test -p waypost --test it -- random_graphs` is the long form;
//! `WAYPOST_SEED=7 WAYPOST_GRAPHS=1 …` repeats one seed.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use waypost::engine::{Outcome, RunError};
use waypost::graph::{Builder, ItemEnds};
use waypost::memory::Part;
use waypost::record::{Phase, RunStatus};
use waypost::store::{Scan, Store as _};
use waypost::{BranchPath, Context, END, Graph, Retry, StepError};
use waypost_testing::seed::Seeded;

use crate::faulty::{Fault, World, run_id};
use crate::play::Notes;

/// Graphs of the short form.
const GRAPHS: u64 = 8;
/// Sessions after which a run that does not end is wrong: more than any graph here has crashes and questions.
const SESSIONS_MAX: usize = 200;

/// How often each step ran, by branch, step and pass.
type Ran = Arc<Mutex<BTreeMap<String, u32>>>;

/// Makes graphs.
struct Maker {
    random: Seeded,
    ran: Ran,
    made: u32,
}

/// The first and the last step of a piece of a graph.
struct Piece {
    first: String,
    last: String,
}

fn name_of(context: &Context) -> String {
    format!("{}/{}{:?}", context.branch(), context.step(), context.iteration())
}

impl Maker {
    fn name(&mut self) -> String {
        self.made += 1;
        format!("s{}", self.made)
    }

    /// A step of a random kind: it only notes its name, fails on its first attempt in a session, does something once,
    /// asks, or must not be repeated.
    fn step(&mut self, builder: Builder<Notes>) -> (Builder<Notes>, Piece) {
        let (name, kind, ran) = (self.name(), self.random.below(5), self.ran.clone());
        let failed = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
        let builder = builder.step(&name, move |state: Notes, context: Context| {
            let (ran, failed) = (ran.clone(), failed.clone());
            async move {
                let name = name_of(&context);
                *ran.lock().unwrap().entry(name.clone()).or_default() += 1;
                let mut noted = context.step().to_string();
                if kind == 1 {
                    let mut failed = failed.lock().unwrap();
                    let count = failed.entry(name.clone()).or_default();
                    *count += 1;
                    if *count == 1 {
                        return Err(StepError::from(io::Error::other("once more")));
                    }
                }
                if kind == 2 {
                    let kept: String =
                        context.once("kept", async { Ok::<_, StepError>("o".to_owned()) }).await?;
                    noted += &kept;
                }
                if kind == 3 {
                    let answer: String = context.interrupt("ask", "?").await?;
                    noted += &answer;
                }
                Ok::<_, StepError>(state.and(noted))
            }
        });
        let builder = builder.retry(Retry::fixed(1, Duration::ZERO));
        (builder, Piece { first: name.clone(), last: name })
    }

    /// A piece of a graph, at most so deep.
    fn piece(&mut self, builder: Builder<Notes>, depth: u64) -> (Builder<Notes>, Piece) {
        match if depth == 0 { 0 } else { self.random.below(6) } {
            0 | 1 => self.step(builder),
            2 => {
                let (builder, one) = self.piece(builder, depth - 1);
                let (builder, other) = self.piece(builder, depth - 1);
                (builder.edge(&one.last, &other.first), Piece { first: one.first, last: other.last })
            }
            3 => self.fork(builder, depth),
            4 => self.loops(builder, depth),
            _ => self.each(builder),
        }
    }

    fn fork(&mut self, builder: Builder<Notes>, depth: u64) -> (Builder<Notes>, Piece) {
        let (mut builder, before) = self.step(builder);
        let mut starts = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let (with, piece) = self.piece(builder, depth - 1);
            builder = with;
            starts.push(piece.first);
        }
        let (join, ran) = (self.name(), self.ran.clone());
        let fork = builder.fork(&before.last, starts).max_parallel(1 + self.random.below(3) as usize);
        let builder = fork.join(&join, move |mut state: Notes, branches, context: Context| {
            *ran.lock().unwrap().entry(name_of(&context)).or_default() += 1;
            let at = state.done.len();
            for branch in branches {
                let told = branch.result.map(|ended| ended.done[at..].join("+"));
                state.done.push(format!("{}={}", branch.key, told.unwrap_or_else(|f| f.error.join(": "))));
            }
            async move { Ok::<_, StepError>(state) }
        });
        (builder, Piece { first: before.first, last: join })
    }

    /// A piece that is gone through twice or three times.
    fn loops(&mut self, builder: Builder<Notes>, depth: u64) -> (Builder<Notes>, Piece) {
        let (builder, body) = self.piece(builder, depth - 1);
        let (builder, gate) = self.step(builder);
        let (builder, exit) = self.step(builder);
        let passes = 2 + self.random.below(2) as usize;
        let (mark, first, out) = (gate.first.clone(), body.first.clone(), exit.first.clone());
        let targets = [first.clone(), out.clone()];
        let builder =
            builder.edge(&body.last, &gate.first).route(&gate.last, targets, move |state: &Notes| {
                let done =
                    state.done.iter().filter(|done| **done == mark || done.strip_prefix(&mark) == Some("o"));
                let again = done.count() % passes != 0 && state.done.len() < 200;
                if again { first.clone() } else { out.clone() }
            });
        (builder, Piece { first: body.first, last: exit.last })
    }

    fn each(&mut self, builder: Builder<Notes>) -> (Builder<Notes>, Piece) {
        let (name, count, ran) = (self.name(), self.random.below(5) as u32, self.ran.clone());
        let joined = self.ran.clone();
        let each = builder.each(
            &name,
            move |_: &Notes| (0..count).collect(),
            |n: &u32| format!("k/{n}"),
            move |n: u32, context: Context| {
                *ran.lock().unwrap().entry(name_of(&context)).or_default() += 1;
                async move { if n == 3 { Err(io::Error::other("three")) } else { Ok(n) } }
            },
        );
        let each = each.collect().max_parallel(1 + self.random.below(3) as usize);
        let builder = each.join(move |state: Notes, mut ends: ItemEnds<u32, u32>, context: Context| {
            *joined.lock().unwrap().entry(name_of(&context)).or_default() += 1;
            async move {
                let mut told = Vec::new();
                while let Some(end) = ends.next().await? {
                    told.push(end.result.map_or_else(|failure| failure.error[0].clone(), |n| n.to_string()));
                }
                Ok::<_, StepError>(state.and(told.join(",")))
            }
        });
        (builder, Piece { first: name.clone(), last: name })
    }
}

fn graph_of(seed: u64) -> (Graph<Notes>, Ran) {
    let ran = Ran::default();
    let mut maker = Maker { random: Seeded::new(seed), ran: ran.clone(), made: 0 };
    let (builder, piece) = maker.piece(Graph::builder("random"), 3);
    (builder.edge(&piece.last, END).start(&piece.first).build().unwrap(), ran)
}

/// What is recorded as finished, with how often it has run so far.
async fn finished(world: &World, ran: &Ran) -> BTreeMap<String, u32> {
    let mut scan = Scan::of(&run_id());
    let mut finished = BTreeMap::new();
    loop {
        let Ok(page) = world.store.scan(&scan).await else { return finished };
        for record in &page.records {
            let header = record.header();
            if let (Phase::Completed(_), Some(step)) = (&header.phase, &header.step) {
                let name = format!("{}/{step}{:?}", header.branch, header.at.iteration);
                let times = ran.lock().unwrap().get(&name).copied().unwrap_or(0);
                finished.insert(name, times);
            }
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return finished,
        }
    }
}

/// Works on a run until it is done, with an answer to every question; dies at the `nth` write of each session as long
/// as `deaths` lasts, and damages the newest record of a branch after a death if `damages` says so.
async fn play(
    world: &mut World,
    (graph, ran): (&Graph<Notes>, &Ran),
    (nth, fault, mut deaths): (u64, Fault, u32),
    mut damages: Option<Seeded>,
) -> (Outcome<Notes>, u64) {
    let mut writes = 0;
    let mut made = false;
    for _ in 0..SESSIONS_MAX {
        if deaths > 0 {
            world.store.plan(nth, 1, fault);
        }
        let before = finished(world, ran).await;
        let session = async {
            let resumed = if made { Some(world.engine.resume(graph, "r").await) } else { None };
            match resumed {
                Some(outcome) => outcome,
                None => world.engine.run(graph, "r", Notes::default()).await,
            }
        };
        let end: Option<Result<Outcome<Notes>, RunError>> = world.until_death(session).await;
        writes += world.store.writes();
        for (name, times) in before.iter().filter(|_| damages.is_none()) {
            assert_eq!(ran.lock().unwrap().get(name).copied().unwrap_or(0), *times, "{name} ran again");
        }
        let died = end.is_none();
        match end {
            None => deaths -= 1,
            Some(outcome) => {
                let outcome = outcome.unwrap();
                if !matches!(outcome.status, RunStatus::Waiting) {
                    return (outcome, writes);
                }
                for waiting in &outcome.waiting {
                    world.engine.answer("r", &waiting.wait.id, json!("!")).await.unwrap();
                }
            }
        }
        world.reopen();
        made = world.store.run(&run_id()).await.is_ok();
        if let Some(random) = damages.as_mut().filter(|_| made && died) {
            damage(world, random).await;
        }
    }
    panic!("it does not end");
}

/// Damages the newest record of an open branch that has an older one to fall back to.
async fn damage(world: &World, random: &mut Seeded) {
    let Ok(heads) = world.store.heads(&run_id(), &waypost::store::Page::default()).await else { return };
    let mut found: Vec<(BranchPath, u64)> = Vec::new();
    for head in heads.heads.iter().filter(|head| head.damaged.is_empty()) {
        let (branch, newest) = (&head.record.header().branch, head.record.header().seq);
        for seq in 1..newest {
            let older = world.store.load(&run_id(), branch, seq).await;
            if older.is_ok_and(|record| record.body_bytes().is_some()) {
                found.push((branch.clone(), newest));
                break;
            }
        }
    }
    if !found.is_empty() {
        let (branch, seq) = &found[random.below(found.len() as u64) as usize];
        let part = if random.below(2) == 0 { Part::Header } else { Part::Body };
        world.below().damage(&run_id(), branch, *seq, part);
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[tokio::test]
async fn every_random_graph_ends_the_same_wherever_it_crashes() {
    let graphs = setting("WAYPOST_GRAPHS").unwrap_or(GRAPHS);
    let first = setting("WAYPOST_SEED").unwrap_or(1);
    let (mut crashes, mut damaged) = (0, 0);
    for seed in first..first + graphs {
        let again = format!(
            "WAYPOST_SEED={seed} WAYPOST_GRAPHS=1 cargo test -p waypost --test it -- random_graphs --nocapture"
        );
        // Shown by the harness only where the test fails.
        #[expect(clippy::print_stdout, reason = "a random test says first how it is repeated")]
        {
            println!("repeat it with: {again}");
        }
        let (graph, ran) = graph_of(seed);
        let whole = (0, Fault::DieBefore, 0);
        let (expect, writes) = play(&mut World::memory(), (&graph, &ran), whole, None).await;
        assert!(matches!(expect.status, RunStatus::Completed | RunStatus::CompletedWithFailures));
        // Each write once; of large graphs, an even sample of them.
        for nth in (1..=writes).step_by(1 + writes as usize / 40) {
            for fault in [Fault::DieBefore, Fault::DieAfter] {
                for deaths in [1, 3] {
                    let (graph, ran) = graph_of(seed);
                    let case = (nth, fault, deaths);
                    let (outcome, _) = play(&mut World::memory(), (&graph, &ran), case, None).await;
                    let actual = (&outcome.status, &outcome.state);
                    assert_eq!(actual, (&expect.status, &expect.state), "{case:?}");
                    crashes += deaths;
                }
                let (graph, ran) = graph_of(seed);
                let random = Some(Seeded::new(seed ^ nth));
                let case = (nth, fault, 2);
                let mut world = World::memory();
                let (outcome, _) = play(&mut world, (&graph, &ran), case, random).await;
                let same = (outcome.status, &outcome.state) == (expect.status, &expect.state);
                let records = world.records().await;
                assert!(same, "damaged, {case:?}: {outcome:#?}, not {expect:#?}, by {records:#?}");
                damaged += 1;
            }
        }
    }
    assert!(crashes as u64 > graphs && damaged > graphs, "{crashes} crashes, {damaged} with damage");
}
