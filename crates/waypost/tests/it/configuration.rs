//! Configuration changes by a resume.

use serde_json::{Map, Value, json};
use waypost::engine::RunError;
use waypost::memory::Part;
use waypost::record::RunStatus;
use waypost::store::Store as _;
use waypost::{Context, Engine, Graph, ScopePath, StepError};

use crate::faulty::World;
use crate::test_graphs::Notes;

/// `a`, then `b`; each notes its configuration.
fn told() -> Graph<Notes> {
    let tell = async |state: Notes, context: Context| {
        let told = Value::Object(context.config().clone()).to_string();
        Ok::<_, StepError>(state.and(format!("{} {told}", context.step())))
    };
    Graph::builder("told").step("a", tell).step("b", tell).edge("a", "b").build().unwrap()
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

async fn seqs(engine: &Engine) -> usize {
    engine.history("r").await.unwrap().len()
}

// Bug: a configuration given to a resume of a completed run was silently dropped: without work, the options were
// ignored. Fix: the change is recorded like a manual edit, and a fork from there has the change.
#[tokio::test]
async fn a_configuration_given_after_the_end_is_written_down() {
    for mut world in World::each() {
        let graph = told();
        let begun = world.engine.run(&graph, "r", Notes::default());
        begun.config(map(json!({ "speed": { "slow": 1 } }))).await.unwrap();
        let before = seqs(&world.engine).await;

        let over = || map(json!({ "speed": { "fast": 2 } }));
        let outcome = world.engine.resume(&graph, "r").config(over()).await.unwrap();

        assert_eq!((outcome.status, outcome.idle), (RunStatus::Completed, false));
        let history = world.engine.history("r").await.unwrap();
        assert_eq!(history.len(), before + 1, "no step ran");
        let newest = history.last().unwrap().record().header();
        assert_eq!(newest.config, Some(map(json!({ "speed": { "slow": 1, "fast": 2 } }))));
        assert_eq!(newest.end, Some(waypost::record::End::Completed));

        // A repeated call changes nothing, and the change stays in force in a new process.
        world.reopen();
        assert!(world.engine.resume(&graph, "r").config(over()).await.unwrap().idle);
        assert_eq!(seqs(&world.engine).await, before + 1);
        let at = history.last().unwrap().at();
        let forked = world.engine.fork(&graph, &at, "r2").await.unwrap();
        assert_eq!(forked.status, RunStatus::Completed);
        let record = world.store.run(&forked.run).await.unwrap().record;
        assert_eq!(Some(&record.record().config), newest.config.as_ref());
    }
}

// Also without an execution: a program that only sets the configuration for another process.
#[tokio::test]
async fn a_configuration_is_written_down_without_running() {
    for world in World::each() {
        let graph = told();
        let held = world.engine.run(&graph, "r", Notes::default()).interrupt_before(["b"]).await.unwrap();
        assert_eq!(held.status, RunStatus::Interrupted);

        let over = map(json!({ "loud": true }));
        let set = world.engine.resume(&graph, "r").config(over).without_running().await.unwrap();
        assert_eq!((set.status, set.idle), (RunStatus::Interrupted, false));
        let outcome = world.engine.resume(&graph, "r").await.unwrap();

        assert_eq!(outcome.state.done, ["a {}", r#"b {"loud":true}"#]);
    }
}

// Bug: damage of the only record with a changed configuration made the run unresumable. Cause: there was no copy.
// Fix: the next record repeats the configuration.
#[tokio::test]
async fn a_changed_configuration_survives_the_damage_of_its_record() {
    let mut world = World::memory();
    let graph = told();
    world.engine.run(&graph, "r", Notes::default()).interrupt_before(["b"]).await.unwrap();
    let over = || map(json!({ "loud": true }));
    world.engine.resume(&graph, "r").config(over()).without_running().await.unwrap();
    let adopted = world.engine.history("r").await.unwrap().last().unwrap().at().seq;
    let held = world.engine.resume(&graph, "r").interrupt_after(["b"]).await.unwrap();
    assert_eq!(held.status, RunStatus::Interrupted);

    world.below().damage(&"r".parse().unwrap(), &ScopePath::main(), adopted, Part::Header);
    world.reopen();
    let outcome = world.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    let again = world.engine.resume(&graph, "r").config(over()).await.unwrap();
    assert!(again.idle, "it is in force, so nothing changes");
}

// Bug: a restarted run had the configuration of its first session: later changes were lost, and a change given
// with `restart` was silently ignored. Cause: only the run record was read. Fix: a restart keeps the
// configuration in force, and merges the given change.
#[tokio::test]
async fn a_restart_merges_the_given_config_into_the_saved_one() {
    for mut world in World::each() {
        let graph = told();
        let begun =
            world.engine.run(&graph, "r", Notes::default()).config(map(json!({ "k": 1, "keep": true })));
        begun.await.unwrap();
        world.engine.resume(&graph, "r").config(map(json!({ "k": 3 }))).await.unwrap();
        let three = [r#"a {"k":3,"keep":true}"#, r#"b {"k":3,"keep":true}"#];
        let nine = [r#"a {"k":9,"keep":true}"#, r#"b {"k":9,"keep":true}"#];

        let outcome = world.engine.resume(&graph, "r").restart(Notes::default()).await.unwrap();
        assert_eq!(outcome.state.done, three);

        let over = || map(json!({ "k": 9 }));
        let again = world.engine.resume(&graph, "r").restart(Notes::default()).config(over());
        assert_eq!(again.interrupt_before(["b"]).await.unwrap().state.done, nine[..1]);
        world.reopen();
        let outcome = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!(outcome.state.done, nine);
        let outcome = world.engine.resume(&graph, "r").restart(Notes::default()).await.unwrap();
        assert_eq!(outcome.state.done, nine);
        assert!(world.engine.resume(&graph, "r").config(over()).await.unwrap().idle);

        let ten = map(json!({ "k": 10 }));
        let set = world.engine.resume(&graph, "r").restart(Notes::default()).config(ten).without_running();
        assert_eq!(set.await.unwrap().status, RunStatus::Interrupted);
        world.reopen();
        let outcome = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!(outcome.state.done, [r#"a {"k":10,"keep":true}"#, r#"b {"k":10,"keep":true}"#]);
    }
}

// Also with a damaged run record, if only checkpoints have the configuration.
#[tokio::test]
async fn a_restart_without_the_run_record_keeps_the_config() {
    let mut world = World::memory();
    let graph = told();
    world.engine.run(&graph, "r", Notes::default()).interrupt_before(["b"]).await.unwrap();
    world.engine.resume(&graph, "r").config(map(json!({ "k": 3 }))).await.unwrap();

    world.below().damage(&"r".parse().unwrap(), &ScopePath::main(), 0, Part::Run);
    world.reopen();
    let restart = || world.engine.resume(&graph, "r").restart(Notes::default());
    assert_eq!(restart().await.unwrap().state.done, [r#"a {"k":3}"#, r#"b {"k":3}"#]);
    let over = restart().config(map(json!({ "k": 9 }))).await.unwrap();
    assert_eq!(over.state.done, [r#"a {"k":9}"#, r#"b {"k":9}"#]);
    assert_eq!(restart().await.unwrap().state.done, [r#"a {"k":9}"#, r#"b {"k":9}"#]);
}

// Bug: the state of a restart was not validated by the caller's function, and a start point was silently ignored.
// Cause: a restart ignored all other options. Fix: a restart uses the options, and refuses conflicting options.
#[tokio::test]
async fn what_is_said_together_with_starting_over_is_looked_at() {
    for world in World::each() {
        let graph = told();
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        let before = seqs(&world.engine).await;
        let restart = || world.engine.resume(&graph, "r").restart(Notes::default().and("anew"));

        let refused = restart().validate_state(|_| Err("no".to_owned())).await.unwrap_err();
        assert_eq!(refused.to_string(), "rejected the state of run r: no");
        let expect = "cannot continue from run r: restarted from its first step, with the given state";
        assert_eq!(restart().from_step("b").await.unwrap_err().to_string(), expect);
        assert_eq!(restart().from_checkpoint(1).await.unwrap_err().to_string(), expect);
        assert!(matches!(restart().from_step("zz").await, Err(RunError::InvalidStep(_))));
        assert_eq!(seqs(&world.engine).await, before);

        let sees =
            |state: &Notes| if state.done == ["anew", "edited"] { Ok(()) } else { Err(format!("{state:?}")) };
        let edited = restart().edit_state(|state| state.done.push("edited".to_owned())).validate_state(sees);
        assert_eq!(edited.await.unwrap().state.done, ["anew", "edited", "a {}", "b {}"]);
    }
}

// Bug: a rollback restored the old configuration, although a change by a resume is meant to stay. Cause: the
// configuration was rolled back too. Fix: a rollback keeps the configuration in force.
#[tokio::test]
async fn going_back_keeps_the_configuration() {
    for mut world in World::each() {
        let graph = told();
        let begun = world.engine.run(&graph, "r", Notes::default()).config(map(json!({ "k": 1 })));
        begun.await.unwrap();
        let over = |k: u32| map(json!({ "k": k }));
        world.engine.resume(&graph, "r").config(over(3)).await.unwrap();

        world.engine.resume(&graph, "r").from_step("a").without_running().await.unwrap();
        world.reopen();
        let outcome = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!(outcome.state.done, [r#"a {"k":3}"#, r#"b {"k":3}"#]);

        let back = world.engine.resume(&graph, "r").from_checkpoint(1).config(over(4)).without_running();
        back.await.unwrap();
        world.reopen();
        let outcome = world.engine.resume(&graph, "r").await.unwrap();
        assert_eq!(outcome.state.done, [r#"a {"k":4}"#, r#"b {"k":4}"#]);
    }
}
