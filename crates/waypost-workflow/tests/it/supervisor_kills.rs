//! Nothing outlives its step when that is cancelled, nor its run when any of the processes around it is killed.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use waypost::lock::{Holder, LockError, RunLock};
use waypost_workflow::supervisor::{Exit, SpawnError, Stdin, StepProcess, SupervisorError, kill_leftovers};

use crate::rig::{
    self, MARK, PROGRAM, children_of, go_on, kill_9, line, lives, marked, new_mark, output, script, shell,
    stop, stubborn_tree, until,
};

/// The processes of a stubborn tree: the members, a sleep below each, and the step's shell with its own.
fn tree_size(members: usize) -> usize {
    2 * members + 2
}

async fn grown(mark: &str, members: usize) {
    until("the tree grows", || marked(mark).len() == tree_size(members)).await;
}

#[tokio::test]
async fn a_cancelled_step_gets_its_grace() {
    let supervisor = rig::start(None).await;
    let text = "trap 'echo ending; exit 9' TERM; echo ready; while :; do sleep 1000 & wait; done";
    let mut child = supervisor.spawn(script(text)).await.unwrap();
    assert_eq!(line(&mut child).await, "ready");

    let exit = child.cancel(Duration::from_secs(50)).await.unwrap();

    assert_eq!(exit, Exit::Code(9));
    assert_eq!(line(&mut child).await, "ending");
}

#[tokio::test]
async fn a_stopped_step_can_be_cancelled_gently() {
    let supervisor = rig::start(None).await;
    let text = "trap 'exit 9' TERM; echo ready; kill -STOP $$; while :; do sleep 0.01; done";
    let mut child = supervisor.spawn(script(text)).await.unwrap();
    assert_eq!(line(&mut child).await, "ready");

    let exit = child.cancel(Duration::from_secs(50)).await.unwrap();

    assert_eq!(exit, Exit::Code(9));
}

#[tokio::test]
async fn a_cancelled_tree_dies_whole_and_other_steps_live() {
    let supervisor = rig::start(None).await;
    let (mark, other_mark) = (new_mark(), new_mark());
    let mut child = supervisor.spawn(shell(&stubborn_tree(25), &mark)).await.unwrap();
    let mut other = supervisor.spawn(shell(&stubborn_tree(6), &other_mark)).await.unwrap();
    grown(&mark, 25).await;
    grown(&other_mark, 6).await;

    let exit = child.cancel(Duration::from_millis(20)).await.unwrap();

    assert_eq!(exit, Exit::Signal(9));
    assert_eq!(marked(&mark), [0_u32; 0]);
    assert_eq!(marked(&other_mark).len(), tree_size(6));
    other.kill().await.unwrap();
    assert_eq!(marked(&other_mark), [0_u32; 0]);
}

#[tokio::test]
async fn a_second_cancel_without_grace_ends_a_long_one() {
    let supervisor = rig::start(None).await;
    let mut child =
        supervisor.spawn(script("trap '' TERM; echo ready; while :; do sleep 1000; done")).await.unwrap();
    assert_eq!(line(&mut child).await, "ready");
    let long = tokio::time::timeout(Duration::from_millis(20), child.cancel(Duration::from_secs(3600)));
    assert!(long.await.is_err());

    assert_eq!(child.kill().await.unwrap(), Exit::Signal(9));
}

#[tokio::test]
async fn a_dropped_child_is_killed_with_its_tree() {
    let supervisor = rig::start(None).await;
    let mark = new_mark();
    let child = supervisor.spawn(shell(&stubborn_tree(5), &mark)).await.unwrap();
    grown(&mark, 5).await;

    drop(child);

    until("the tree dies", || marked(&mark).is_empty()).await;
}

#[tokio::test]
async fn the_background_of_an_ended_step_can_be_cancelled() {
    let supervisor = rig::start(None).await;
    let mark = new_mark();
    let mut child =
        supervisor.spawn(shell("sleep 1000 & (setsid sleep 1000 &) ; exit 4", &mark)).await.unwrap();
    assert_eq!(child.wait().await.unwrap(), Exit::Code(4));

    assert_eq!(child.cancel(Duration::from_secs(50)).await.unwrap(), Exit::Code(4));

    assert_eq!(marked(&mark), [0_u32; 0]);
}

#[tokio::test]
async fn a_process_that_forks_for_ever_is_killed() {
    let supervisor = rig::start(None).await;
    let mark = new_mark();
    let text = "f() { sleep 0.01; f & }; f & f & f & echo ready; wait; while :; do sleep 1; done";
    let mut child = supervisor.spawn(shell(text, &mark)).await.unwrap();
    assert_eq!(line(&mut child).await, "ready");

    child.kill().await.unwrap();

    assert_eq!(marked(&mark), [0_u32; 0]);
}

/// A step with processes that each start the next in a session of its own and end, for ever.
fn hopping(pause: &str, mark: &str) -> StepProcess {
    let mut step = shell("for i in 1 2 3 4 5; do sh -c \"$HOP\"; done; echo ready; sleep 1000", mark);
    step.env.push(("HOP".into(), format!("{pause} setsid sh -c \"$HOP\" &").into()));
    step
}

#[tokio::test]
async fn processes_that_hop_from_session_to_session_are_caught() {
    let supervisor = rig::start(None).await;
    for pause in ["sleep 0.005;", ""] {
        let mark = new_mark();
        let mut child = supervisor.spawn(hopping(pause, &mark)).await.unwrap();
        assert_eq!(line(&mut child).await, "ready");

        child.kill().await.unwrap();

        assert_eq!(marked(&mark), [0_u32; 0]);
    }
}

#[tokio::test]
async fn forking_processes_are_killed_although_their_reaper_died() {
    let supervisor = rig::start(None).await;
    let (mark, other_mark) = (new_mark(), new_mark());
    let mut child = supervisor.spawn(hopping("", &mark)).await.unwrap();
    let reaper = children_of(supervisor.pid().unwrap())[0];
    let mut other = supervisor.spawn(shell("echo up; sleep 1000", &other_mark)).await.unwrap();
    assert_eq!(line(&mut child).await, "ready");
    assert_eq!(line(&mut other).await, "up");

    kill_9(reaper);

    assert!(matches!(child.wait().await, Err(SupervisorError::ReaperKilled)));
    assert_eq!(marked(&mark), [0_u32; 0]);
    assert!(!marked(&other_mark).is_empty());
}

#[tokio::test]
async fn shutdown_ends_everything_and_frees_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.lock");
    let lock = RunLock::take(&path, &here(), false).unwrap();
    let supervisor = rig::start(Some(lock.try_clone_fd().unwrap())).await;
    let mark = new_mark();
    let mut child = supervisor.spawn(shell(&stubborn_tree(9), &mark)).await.unwrap();
    grown(&mark, 9).await;
    drop(lock);
    assert!(matches!(RunLock::take(&path, &here(), false), Err(LockError::Held { .. })));

    supervisor.shutdown().await.unwrap();

    assert_eq!(marked(&mark), [0_u32; 0]);
    let lock = RunLock::take(&path, &here(), false).unwrap();
    assert!(lock.previous().is_some(), "an engine that lives is not spoken for");
    assert!(matches!(child.wait().await, Err(SupervisorError::Ended)));
}

/// An engine in a process of its own.
struct Engine {
    process: Child,
    supervisor: u32,
}

impl Engine {
    fn start(lock: &Path, mark: &str, scripts: &[String]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.arg("engine").arg(lock).args(scripts).env(MARK, mark).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { process, supervisor: line.trim().parse().unwrap() }
    }

    fn reapers(&self) -> Vec<u32> {
        children_of(self.supervisor)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // A test that failed may have left them stopped; going on, they clean up. They may be gone by now.
        for pid in [vec![self.supervisor], self.reapers()].concat() {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
        }
    }
}

fn here() -> Holder {
    Holder::here(jiff::Timestamp::UNIX_EPOCH).unwrap()
}

/// Waits until the lock is free, and checks at each look that no process of the run lived when it was.
///
/// Returns the note that was left.
async fn free_only_after_the_last(path: &Path, mark: &str) -> Option<Holder> {
    let mut previous = None;
    until("the lock is free", || {
        // Taken, not only asked for: so nobody could have started anything between the two looks.
        let Ok(lock) = RunLock::take(path, &here(), false) else { return false };
        assert_eq!(marked(mark), [0_u32; 0], "the lock is free while these live");
        previous = lock.previous().cloned();
        true
    })
    .await;
    previous
}

#[tokio::test]
async fn kill_9_of_the_engine_keeps_the_lock_until_all_are_dead() {
    for round in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.lock");
        let mark = new_mark();
        let mut engine = Engine::start(&path, &mark, &[stubborn_tree(25), stubborn_tree(3)]);
        // Engine, supervisor and reapers have the mark too.
        let own = 2 + engine.reapers().len();
        until("the trees grow", || marked(&mark).len() == tree_size(25) + tree_size(3) + own).await;
        assert_eq!(own, 4);

        // In some rounds those who clean up are held, so that there is a moment to look at in between.
        let cleaners = [engine.reapers(), vec![engine.supervisor]].concat();
        if round % 2 == 0 {
            cleaners.iter().for_each(|pid| stop(*pid));
        }
        engine.process.kill().unwrap();
        engine.process.wait().unwrap();
        if round % 2 == 0 {
            assert!(!marked(&mark).is_empty());
            assert!(matches!(RunLock::take(&path, &here(), false), Err(LockError::Held { .. })));
            cleaners.iter().for_each(|pid| go_on(*pid));
        }

        let note = free_only_after_the_last(&path, &mark).await;
        assert_eq!(note, None, "the supervisor attested that nothing is left");
    }
}

#[test]
fn whoever_gets_the_lock_finds_the_supervisor_dead() {
    // What happened: rarely, a process of the run still lived when another had taken the run's lock.
    // Why: the supervisor closed the lock, and ended after that.
    // What stops it now: it leaves that to the kernel, which closes it when the program is gone.
    let folder = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = folder.path().join(format!("{round}.lock"));
        let mark = new_mark();
        let mut engine = Engine::start(&path, &mark, &["sleep 1000".into()]);
        engine.process.kill().unwrap();
        engine.process.wait().unwrap();

        // Asked for without a pause: the moment between the two is short.
        let _lock = loop {
            if let Ok(lock) = RunLock::take(&path, &here(), false) {
                break lock;
            }
        };

        assert!(!rig::has_mark(engine.supervisor, &mark), "in round {round}");
    }
}

#[tokio::test]
async fn kill_9_of_the_supervisor_ends_all_steps_and_is_reported() {
    let supervisor = rig::start(None).await;
    let mark = new_mark();
    let mut child = supervisor.spawn(shell(&stubborn_tree(25), &mark)).await.unwrap();
    grown(&mark, 25).await;

    kill_9(supervisor.pid().unwrap());

    supervisor.ended().await;
    assert!(matches!(child.wait().await, Err(SupervisorError::Ended)));
    assert_eq!(marked(&mark), [0_u32; 0], "the answer comes after the death of all");
    let error = supervisor.spawn(script("true")).await.unwrap_err();
    assert!(matches!(error, SpawnError::Supervisor(SupervisorError::Ended)), "{error:?}");
    assert!(matches!(supervisor.shutdown().await, Err(SupervisorError::Ended)));
}

#[tokio::test]
async fn kill_9_of_supervisor_and_engine_together_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.lock");
    let mark = new_mark();
    let engine = Engine::start(&path, &mark, &[stubborn_tree(25)]);
    until("the tree grows", || marked(&mark).len() == tree_size(25) + 3).await;

    kill_9(engine.supervisor);
    kill_9(engine.process.id());

    free_only_after_the_last(&path, &mark).await;
}

#[tokio::test]
async fn kill_9_of_a_reaper_ends_its_step_and_no_other() {
    let supervisor = rig::start(None).await;
    let pid = supervisor.pid().unwrap();
    let (mark, other_mark) = (new_mark(), new_mark());
    let mut child = supervisor.spawn(shell(&stubborn_tree(25), &mark)).await.unwrap();
    let reaper = children_of(pid)[0];
    let mut other = supervisor.spawn(shell(&stubborn_tree(3), &other_mark)).await.unwrap();
    grown(&mark, 25).await;
    grown(&other_mark, 3).await;

    kill_9(reaper);

    assert!(matches!(child.wait().await, Err(SupervisorError::ReaperKilled)));
    assert_eq!(marked(&mark), [0_u32; 0], "the answer comes after the death of all");
    assert_eq!(marked(&other_mark).len(), tree_size(3));
    assert_eq!(other.kill().await.unwrap(), Exit::Signal(9));
    let (exit, ..) = output(supervisor.spawn(script("true")).await.unwrap()).await;
    assert!(exit.success(), "the supervisor serves on");
    supervisor.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_step_that_kills_its_reaper_is_killed_with_its_tree() {
    let supervisor = rig::start(None).await;
    let mark = new_mark();
    let (go, gate) = std::io::pipe().unwrap();
    let mut step = shell("read -r go; (setsid sleep 1000 &) ; sleep 1000 & kill -9 $PPID; sleep 1000", &mark);
    step.stdin = Stdin::File(go.into());
    let mut child = supervisor.spawn(step).await.unwrap();
    // Not before the engine knows of the start, or that would be what fails.
    drop(gate);

    assert!(matches!(child.wait().await, Err(SupervisorError::ReaperKilled)));

    assert_eq!(marked(&mark), [0_u32; 0]);
}

#[tokio::test]
async fn a_step_whose_reaper_was_stopped_can_be_cancelled() {
    let supervisor = rig::start(None).await;
    let mark = new_mark();
    let mut child = supervisor.spawn(shell("echo up; sleep 1000", &mark)).await.unwrap();
    assert_eq!(line(&mut child).await, "up");
    stop(children_of(supervisor.pid().unwrap())[0]);

    // From here on the seconds that it waits for an answer pass at once.
    tokio::time::pause();
    let error = child.cancel(Duration::from_millis(10)).await.unwrap_err();

    assert!(matches!(error, SupervisorError::ReaperKilled), "{error:?}");
    assert_eq!(marked(&mark), [0_u32; 0]);
}

#[tokio::test]
async fn a_reaper_that_was_stopped_does_not_hold_up_a_start_for_ever() {
    let supervisor = rig::start(None).await;
    output(supervisor.spawn(script("true")).await.unwrap()).await;
    stop(children_of(supervisor.pid().unwrap())[0]);

    tokio::time::pause();
    let error = supervisor.spawn(script("true")).await.unwrap_err();
    tokio::time::resume();

    assert!(matches!(error, SpawnError::Supervisor(SupervisorError::ReaperKilled)), "{error:?}");
    let (exit, ..) = output(supervisor.spawn(script("true")).await.unwrap()).await;
    assert!(exit.success());
}

#[tokio::test]
async fn an_idle_reaper_that_was_killed_is_replaced() {
    let supervisor = rig::start(None).await;
    output(supervisor.spawn(script("true")).await.unwrap()).await;
    let [reaper] = children_of(supervisor.pid().unwrap())[..] else { panic!("one step, one reaper") };

    kill_9(reaper);
    until("the reaper dies", || !lives(reaper)).await;

    let (exit, ..) = output(supervisor.spawn(script("true")).await.unwrap()).await;
    assert!(exit.success());
}

#[tokio::test]
async fn kill_9_of_all_leaves_processes_for_the_next_holder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.lock");
    let mark = new_mark();
    let engine = Engine::start(&path, &mark, &[stubborn_tree(25)]);
    until("the tree grows", || marked(&mark).len() == tree_size(25) + 3).await;

    // Stopped first, so that none of them can act on the death of another.
    let all = [engine.reapers(), vec![engine.supervisor, engine.process.id()]].concat();
    all.iter().for_each(|pid| stop(*pid));
    all.iter().for_each(|pid| kill_9(*pid));

    let mut lock = None;
    until("the lock is free", || {
        lock = RunLock::take(&path, &here(), false).ok();
        lock.is_some()
    })
    .await;
    let lock = lock.unwrap();
    assert!(lock.previous().is_some_and(Holder::same_boot), "nobody attested that nothing is left");
    assert!(marked(&mark).len() >= 50, "the kill of all would show nothing otherwise");
    let killed = kill_leftovers(&[(MARK, &mark)]).unwrap();
    assert!(killed >= 50);
    assert_eq!(marked(&mark), [0_u32; 0]);
    assert_eq!(kill_leftovers(&[(MARK, &mark)]).unwrap(), 0);
}

#[test]
fn without_a_marker_nothing_is_a_leftover() {
    assert_eq!(kill_leftovers(&[]).unwrap(), 0);
    assert_eq!(kill_leftovers(&[(MARK, "no such mark")]).unwrap(), 0);
}
