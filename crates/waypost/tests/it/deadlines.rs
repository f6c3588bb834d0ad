//! Waits for the earliest of several conditions, and waits with a deadline.

use std::future::{Future, IntoFuture as _};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use waypost::engine::{Outcome, RunError};
use waypost::graph::SLEEP_IN_MEMORY_MAX;
use waypost::record::{RunStatus, WaitKind};
use waypost::{Context, Engine, Graph, StepError};
use waypost_testing::TestClock;

use crate::faulty::World;
use crate::test_graphs::{Notes, Stage};

const HOUR: Duration = Duration::from_secs(3_600);

/// Builds a graph of one step, which notes the result of its function.
fn graph<F, W>(work: F) -> Graph<Notes>
where
    F: Fn(Context) -> W + Send + Sync + 'static,
    W: Future<Output = Result<String, StepError>> + Send + 'static,
{
    let step = move |state: Notes, context: Context| {
        let work = work(context);
        async move { Ok::<_, StepError>(state.and(work.await?)) }
    };
    Graph::builder("waits").step("a", step).build().unwrap()
}

/// A world with a manual clock.
struct Timed {
    world: World,
    clock: Arc<TestClock>,
}

impl Timed {
    fn each() -> [Self; 2] {
        World::each().map(|world| Self { world, clock: Arc::default() })
    }

    fn engine(&self) -> Engine {
        self.world.engine.clone().with_clock(self.clock.clone())
    }

    async fn begin(&self, graph: &Graph<Notes>) -> Outcome<Notes> {
        let outcome = self.engine().run(graph, "r", Notes::default()).await.unwrap();
        assert_eq!(outcome.status, RunStatus::Waiting, "{outcome:?}");
        outcome
    }

    /// Crashes, advances the clock, and resumes.
    async fn resume_after(&mut self, time: Duration, graph: &Graph<Notes>) -> Outcome<Notes> {
        self.world.reopen();
        self.clock.pass(time);
        self.engine().resume(graph, "r").await.unwrap()
    }
}

/// Builds a race of a signal and one hour.
fn race() -> Graph<Notes> {
    graph(|context| async move {
        tokio::select! {
            value = context.signal::<String>("hook", "hook") => value,
            slept = context.sleep("timeout", HOUR) => slept.map(|()| "timeout".to_owned()),
        }
    })
}

// Bug: only one of the two conditions was recorded, and the run waited for ever.
#[tokio::test]
async fn a_select_of_signal_and_sleep_wakes_by_the_earliest() {
    for mut timed in Timed::each() {
        let graph = race();
        let first = timed.begin(&graph).await;
        let mut kinds: Vec<_> = first.waiting.iter().map(|waiting| waiting.wait.on.clone()).collect();
        kinds.sort_by_key(|kind| matches!(kind, WaitKind::Until(_)));
        assert!(matches!(&kinds[..], [WaitKind::Signal(name), WaitKind::Until(_)] if name == "hook"));

        assert!(timed.resume_after(HOUR / 2, &graph).await.idle);
        let end = timed.resume_after(HOUR, &graph).await;

        assert_eq!((end.status, end.state.done), (RunStatus::Completed, vec!["timeout".to_owned()]));
    }
    for mut timed in Timed::each() {
        let graph = race();
        timed.begin(&graph).await;
        timed.engine().signal("r", "hook", json!("rang")).await.unwrap();

        let end = timed.resume_after(HOUR / 2, &graph).await;

        assert_eq!((end.status, end.state.done), (RunStatus::Completed, vec!["rang".to_owned()]));
    }
}

#[tokio::test]
async fn of_two_sleeps_the_shorter_one_wakes_the_step() {
    for order in [[HOUR, 3 * HOUR], [3 * HOUR, HOUR]] {
        for mut timed in Timed::each() {
            let graph = graph(move |context| async move {
                tokio::select! {
                    biased;
                    slept = context.sleep("one", order[0]) => slept?,
                    slept = context.sleep("other", order[1]) => slept?,
                }
                Ok("awake".to_owned())
            });
            assert_eq!(timed.begin(&graph).await.waiting.len(), 2);

            assert!(timed.resume_after(HOUR / 2, &graph).await.idle);
            assert_eq!(timed.resume_after(HOUR, &graph).await.state.done, ["awake"]);
        }
    }
}

fn signal_or_none() -> Graph<Notes> {
    graph(|context| async move {
        let value: Option<String> = context.signal_within("hook", "hook", HOUR).await?;
        let asked: bool = context.interrupt("go on", "?").await?;
        Ok(format!("{value:?} {asked}"))
    })
}

/// Answers the question `go on`.
async fn go_on(timed: &mut Timed, outcome: Outcome<Notes>, graph: &Graph<Notes>) -> Vec<String> {
    assert_eq!(outcome.waiting[0].wait.question, Some(json!("?")), "{outcome:?}");
    timed.engine().answer("r", &outcome.waiting[0].wait.id, json!(true)).await.unwrap();
    timed.resume_after(Duration::ZERO, graph).await.state.done
}

#[tokio::test]
async fn a_signal_within_its_time_is_taken_and_a_later_one_is_not() {
    for mut timed in Timed::each() {
        let graph = signal_or_none();
        let first = timed.begin(&graph).await;
        assert_eq!(first.waiting.len(), 1);
        assert!(first.waiting[0].wait.until.is_some());

        let late = timed.resume_after(2 * HOUR, &graph).await;
        // The timeout is decided: this signal stays for another wait.
        timed.engine().signal("r", "hook", json!("late")).await.unwrap();
        assert_eq!(go_on(&mut timed, late, &graph).await, ["None true"]);
    }
    for mut timed in Timed::each() {
        let graph = signal_or_none();
        timed.begin(&graph).await;
        timed.clock.pass(HOUR / 2);
        timed.engine().signal("r", "hook", json!("in time")).await.unwrap();

        // No process ran at the deadline: a signal from before the deadline counts.
        let taken = timed.resume_after(2 * HOUR, &graph).await;
        assert_eq!(go_on(&mut timed, taken, &graph).await, [r#"Some("in time") true"#]);
    }
    for mut timed in Timed::each() {
        let graph = signal_or_none();
        timed.begin(&graph).await;
        timed.clock.pass(2 * HOUR);
        timed.engine().signal("r", "hook", json!("late")).await.unwrap();

        let late = timed.resume_after(Duration::ZERO, &graph).await;
        assert_eq!(go_on(&mut timed, late, &graph).await, ["None true"]);
    }
}

#[tokio::test]
async fn a_question_within_its_time_is_answered_and_later_is_not() {
    for (passes, answered) in [(HOUR / 2, true), (2 * HOUR, false)] {
        for mut timed in Timed::each() {
            let graph = graph(|context| async move {
                let may: Option<bool> = context.interrupt_within("may", "may I?", HOUR).await?;
                Ok(format!("{may:?}"))
            });
            let first = timed.begin(&graph).await;
            let id = &first.waiting[0].wait.id;
            timed.clock.pass(passes);
            let answer = timed.engine().answer("r", id, json!(true)).await;
            assert_eq!(answer.is_ok(), answered);
            assert!(answered || matches!(answer, Err(RunError::NoSuchWait { .. })));

            let end = timed.resume_after(Duration::ZERO, &graph).await;

            let expect = if answered { "Some(true)" } else { "None" };
            assert_eq!((end.status, end.state.done), (RunStatus::Completed, vec![expect.to_owned()]));
        }
    }
}

#[tokio::test]
async fn a_deadline_does_not_move_with_crashes_and_answers() {
    for mut timed in Timed::each() {
        let graph = graph(|context| async move {
            let both = tokio::join!(
                context.interrupt::<bool>("other", "other?"),
                context.interrupt_within::<bool>("may", "may I?", HOUR),
            );
            Ok(format!("{} {:?}", both.0?, both.1?))
        });
        let first = timed.begin(&graph).await;
        let id = |outcome: &Outcome<Notes>, key: &str| {
            let of = |waiting: &&waypost::engine::Waiting| waiting.wait.key == key;
            outcome.waiting.iter().find(of).map(|waiting| (waiting.wait.id.clone(), waiting.wait.until))
        };
        let deadline = id(&first, "may").unwrap();
        let other = id(&first, "other").unwrap().0;
        timed.engine().answer("r", &other, json!(true)).await.unwrap();
        let second = timed.resume_after(HOUR / 2, &graph).await;
        assert_eq!((id(&second, "may"), id(&second, "other")), (Some(deadline), None));

        let end = timed.resume_after(HOUR / 2, &graph).await;

        assert_eq!(end.state.done, ["true None"]);
    }
}

// Bug: a clock that was set back delayed the deadline by the same time.
#[tokio::test]
async fn no_deadline_is_later_than_its_own_time_from_now() {
    let begin = "2026-01-01T12:00:00Z".parse().unwrap();
    for mut timed in Timed::each() {
        timed.clock.set(begin);
        let graph = signal_or_none();
        timed.begin(&graph).await;

        timed.clock.set("2025-01-01T12:00:00Z".parse().unwrap());
        let again = timed.resume_after(Duration::ZERO, &graph).await;
        assert_eq!(again.waiting[0].wait.until, Some("2025-01-01T13:00:00Z".parse().unwrap()));
        let late = timed.resume_after(HOUR + Duration::from_secs(1), &graph).await;

        assert_eq!(go_on(&mut timed, late, &graph).await, ["None true"]);
    }
}

#[tokio::test]
async fn questions_asked_at_once_return_together_in_their_order() {
    for mut timed in Timed::each() {
        let graph = graph(|context| async move {
            let questions = (0..40).map(|place| (format!("q{place}"), format!("number {place}?")));
            let answers: Vec<u32> = context.interrupt_all(questions).await?;
            Ok(answers.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
        });
        let first = timed.begin(&graph).await;
        assert_eq!(first.waiting.len(), 40);
        let mut ids: Vec<_> =
            first.waiting.iter().map(|waiting| waiting.wait.id.clone()).enumerate().collect();
        let last = ids.pop().unwrap();
        for (place, id) in ids.into_iter().rev() {
            timed.engine().answer("r", &id, json!(place)).await.unwrap();
        }
        let but_one = timed.resume_after(Duration::ZERO, &graph).await;
        assert_eq!(but_one.waiting.iter().map(|waiting| &waiting.wait.id).collect::<Vec<_>>(), [&last.1]);
        timed.engine().answer("r", &last.1, json!(last.0)).await.unwrap();

        let end = timed.resume_after(Duration::ZERO, &graph).await;

        let expect: Vec<_> = (0..40).map(|place: u32| place.to_string()).collect();
        assert_eq!(end.state.done, [expect.join(" ")]);
    }
}

/// Builds a question concurrent with work that ends when `gate` opens.
fn beside(stage: &Stage, gate: &Arc<tokio::sync::Notify>) -> Graph<Notes> {
    let (stage, gate) = (stage.clone(), Arc::clone(gate));
    graph(move |context| {
        let (stage, gate) = (stage.clone(), Arc::clone(&gate));
        async move {
            let work = context.once("work", async {
                stage.say("begun");
                gate.notified().await;
                stage.say("done");
                Ok::<_, StepError>(7)
            });
            let (answer, work) = tokio::join!(context.interrupt::<String>("may", "may I?"), work);
            Ok(format!("{} {}", answer?, work?))
        }
    })
}

// Bug: the question dropped concurrent work in the middle.
#[tokio::test]
async fn work_beside_a_question_ends_before_the_step_is_suspended() {
    for mut world in World::each() {
        let (stage, gate) = (Stage::default(), Arc::new(tokio::sync::Notify::new()));
        let graph = beside(&stage, &gate);
        let opens = async {
            while !stage.has_said("begun") {
                tokio::task::yield_now().await;
            }
            // The question is shown while the work runs.
            let asked = loop {
                match world.engine.waiting(&crate::faulty::run_id()).await.unwrap().pop() {
                    Some(asked) => break asked,
                    None => tokio::task::yield_now().await,
                }
            };
            gate.notify_one();
            asked
        };

        let (first, asked) =
            tokio::join!(world.engine.run(&graph, "r", Notes::default()).into_future(), opens);
        let first = first.unwrap();
        assert_eq!(
            (first.status, first.waiting[0].wait.id.as_str()),
            (RunStatus::Waiting, asked.wait.id.as_str())
        );
        assert_eq!(stage.said(), ["begun", "done"]);
        world.engine.answer("r", &asked.wait.id, json!("yes")).await.unwrap();
        world.reopen();
        let end = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!((end.state.done, stage.said()), (vec!["yes 7".to_owned()], Vec::<String>::new()));
    }
}

#[tokio::test]
async fn an_answer_during_work_beside_its_question_needs_no_new_start() {
    for world in World::each() {
        let (stage, gate) = (Stage::default(), Arc::new(tokio::sync::Notify::new()));
        let graph = beside(&stage, &gate);
        let answers = async {
            let asked = loop {
                match world.engine.waiting(&crate::faulty::run_id()).await.ok().and_then(|mut all| all.pop())
                {
                    Some(asked) => break asked,
                    None => tokio::task::yield_now().await,
                }
            };
            world.engine.answer("r", &asked.wait.id, json!("yes")).await.unwrap();
            let taken = async || world.records().await.iter().any(|record| record.contains("progress"));
            while !taken().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            gate.notify_one();
        };

        let (end, ()) = tokio::join!(world.engine.run(&graph, "r", Notes::default()).into_future(), answers);

        assert_eq!(end.unwrap().state.done, ["yes 7"]);
        assert_eq!(stage.said(), ["begun", "done"]);
    }
}

// Bug: the wait of the question kept the process timeout from firing.
#[tokio::test]
async fn a_timeout_in_the_process_fires_beside_a_question() {
    let world = World::memory();
    let graph = graph(|context| async move {
        let question = context.interrupt::<bool>("may", "may I?");
        match tokio::time::timeout(Duration::from_millis(50), question).await {
            Ok(answer) => Ok(answer?.to_string()),
            Err(_) => Ok("timeout".to_owned()),
        }
    });

    let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!((outcome.status, outcome.state.done), (RunStatus::Completed, vec!["timeout".to_owned()]));
    assert!(outcome.waiting.is_empty());
}

#[tokio::test]
async fn a_short_deadline_passes_without_a_resume() {
    assert!(Duration::from_millis(20) < SLEEP_IN_MEMORY_MAX);
    let world = World::memory();
    let graph = graph(|context| async move {
        let time = Duration::from_millis(20);
        let question: Option<Value> = context.interrupt_within("may", "may I?", time).await?;
        let signal: Option<Value> = context.signal_within("hook", "hook", time).await?;
        Ok(format!("{question:?} {signal:?}"))
    });

    let outcome = world.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!((outcome.status, outcome.state.done), (RunStatus::Completed, vec!["None None".to_owned()]));
}

#[tokio::test]
async fn a_wait_in_another_task_suspends_the_step() {
    let world = World::memory();
    let graph = graph(|context| async move {
        let asks = tokio::spawn(async move { context.interrupt::<String>("may", "may I?").await });
        asks.await.map_err(StepError::fatal)?
    });

    let first = world.engine.run(&graph, "r", Notes::default()).await.unwrap();
    world.engine.answer("r", &first.waiting[0].wait.id, json!("yes")).await.unwrap();
    let end = world.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(end.state.done, ["yes"]);
}

#[tokio::test]
async fn a_step_that_heeds_a_stop_is_suspended_by_its_question() {
    let world = World::memory();
    let graph = graph(|context| async move {
        tokio::select! {
            answer = context.interrupt::<String>("may", "may I?") => answer,
            () = context.cancelled() => Ok("cancelled".to_owned()),
        }
    });

    let first = world.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!((first.status, first.waiting.len()), (RunStatus::Waiting, 1));
}
