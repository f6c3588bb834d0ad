//! What a step is given, and what the engine learns of its end.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use waypost::deadline::{BootTime, Deadline};
use waypost_workflow::supervisor::{
    Exit, Output, SpawnError, Stdin, Supervisor, SupervisorError, SupervisorProgram, leftovers,
};

use crate::rig::{self, PROGRAM, line, marked, new_mark, output, script, shell, until};

#[tokio::test]
async fn exit_codes_and_signals_are_reported() {
    let supervisor = rig::start(None).await;

    for (text, expected) in [
        ("true", Exit::Code(0)),
        ("exit 7", Exit::Code(7)),
        ("exit 255", Exit::Code(255)),
        ("kill -KILL $$", Exit::Signal(9)),
        ("kill -TERM $$", Exit::Signal(15)),
    ] {
        let (exit, ..) = output(supervisor.spawn(script(text)).await.unwrap()).await;
        assert_eq!(exit, expected, "{text}");
    }
    supervisor.shutdown().await.unwrap();
}

#[tokio::test]
async fn arguments_arrive_byte_for_byte() {
    let supervisor = rig::start(None).await;
    let odd = OsString::from_vec(vec![b'a', 0xff, b'\n', b' ', b'"', b'\'', 0x01]);
    let mut step = script("");
    step.argv = vec!["printf".into(), "[%s]".into(), "".into(), odd.clone(), "*".into()];

    let mut child = supervisor.spawn(step).await.unwrap();
    let mut written = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut written).await.unwrap();

    assert_eq!(written, [b"[][", odd.as_bytes(), b"][*]"].concat());
}

#[tokio::test]
async fn the_environment_is_what_was_given_and_nothing_else() {
    let supervisor = rig::start(None).await;
    let odd = OsString::from_vec(vec![b'=', 0xfe, b'\n']);
    let mut step = script("");
    step.argv = vec!["/usr/bin/env".into(), "-0".into()];
    step.env = vec![("B".into(), odd.clone()), ("A".into(), "".into()), ("PATH".into(), "/nowhere".into())];

    let mut child = supervisor.spawn(step).await.unwrap();
    let mut written = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut written).await.unwrap();

    assert_eq!(written, [b"B=", odd.as_bytes(), b"\0A=\0PATH=/nowhere\0"].concat());
}

#[tokio::test]
async fn the_folder_is_the_one_given() {
    let supervisor = rig::start(None).await;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let mut step = script("pwd -P");
    step.dir.clone_from(&folder);

    let (_, stdout, _) = output(supervisor.spawn(step).await.unwrap()).await;

    assert_eq!(stdout.trim_end(), folder.to_str().unwrap());
}

#[tokio::test]
async fn a_relative_folder_is_relative_to_the_engine() {
    let supervisor = rig::start(None).await;
    let mut step = script("pwd -P");
    step.dir = PathBuf::from("src");

    let (_, stdout, _) = output(supervisor.spawn(step).await.unwrap()).await;

    let expected = std::env::current_dir().unwrap().join("src").canonicalize().unwrap();
    assert_eq!(stdout.trim_end(), expected.to_str().unwrap());
}

#[tokio::test]
async fn a_large_environment_arrives_whole() {
    let supervisor = rig::start(None).await;
    let mut step = script(r#"printf %s "$V0$V1$V2$V3$V4$V5$V6$V7$V8$V9" | wc -c"#);
    let value = "x".repeat(120_000);
    step.env.extend((0..10).map(|index| (format!("V{index}").into(), value.clone().into())));

    let (exit, stdout, _) = output(supervisor.spawn(step).await.unwrap()).await;

    assert_eq!((exit, stdout.trim()), (Exit::Code(0), "1200000"));
}

#[tokio::test]
async fn an_environment_beyond_what_the_system_takes_is_refused() {
    let supervisor = rig::start(None).await;
    for count in [1, 100] {
        let mut step = script("true");
        step.env.extend((0..count).map(|index| (format!("V{index}").into(), "x".repeat(140_000).into())));

        let refused = supervisor.spawn(step).await.unwrap_err();

        assert!(matches!(refused, SpawnError::TooLong { bytes, .. } if bytes > 140_000), "{refused:?}");
    }
    let (exit, ..) = output(supervisor.spawn(script("true")).await.unwrap()).await;
    assert!(exit.success(), "a refused start leaves the reaper usable");
}

#[tokio::test]
async fn stdin_is_empty_unless_given() {
    let supervisor = rig::start(None).await;
    let big = "line\n".repeat(100_000);
    let file = std::fs::File::open("/dev/zero").unwrap();
    let cases = [
        (Stdin::Empty, "cat | wc -c", "0"),
        (Stdin::Bytes(big.into_bytes()), "cat | wc -c", "500000"),
        (Stdin::Bytes(Vec::new()), "cat | wc -c", "0"),
        (Stdin::File(OwnedFd::from(file)), "head -c 1000 | wc -c", "1000"),
    ];
    for (stdin, text, expected) in cases {
        let mut step = script(text);
        step.stdin = stdin;

        let (_, stdout, _) = output(supervisor.spawn(step).await.unwrap()).await;

        assert_eq!(stdout.trim(), expected);
    }
}

#[tokio::test]
async fn merged_output_keeps_the_order_of_writing() {
    let supervisor = rig::start(None).await;
    let mut step = script("for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done");
    step.output = Output::Merged;

    let child = supervisor.spawn(step).await.unwrap();
    assert!(child.stderr.is_none());
    let (_, stdout, _) = output(child).await;

    assert_eq!(stdout.split_whitespace().collect::<String>(), "o1e1o2e2o3e3o4e4o5e5o6e6o7e7o8e8o9e9");
}

#[tokio::test]
async fn a_step_has_its_three_streams_and_no_other_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    let lock = std::fs::File::create(folder.path().join("lock")).unwrap();
    // A descriptor that the engine's own parent forgot to close.
    let leaked = std::fs::File::open("/etc/passwd").unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let supervisor = rig::start(Some(lock.into())).await;
    let mut large = script("");
    large.env.push(("LARGE".into(), "x".repeat(100_000).into()));

    for mut step in [script(""), large] {
        step.argv = ["sh", "-c", "ls /proc/$$/fd"].map(OsString::from).to_vec();
        let (_, stdout, _) = output(supervisor.spawn(step).await.unwrap()).await;

        assert_eq!(stdout.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2"]);
    }
    assert!(leaked.as_raw_fd() > 2);
}

#[tokio::test]
async fn no_signal_is_ignored_or_blocked_in_a_step() {
    let supervisor = rig::start(None).await;
    let mut step = script("");
    step.argv = ["grep", "^Sig[BI]", "/proc/self/status"].map(OsString::from).to_vec();

    let (_, stdout, _) = output(supervisor.spawn(step).await.unwrap()).await;

    assert_eq!(stdout, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

#[tokio::test]
async fn a_step_leads_its_group_and_has_no_terminal() {
    let supervisor = rig::start(None).await;
    // Fields 5 to 7 of the shell itself: group, session, terminal.
    let step = script(r#"read -r line < /proc/$$/stat; set -- ${line##*) }; echo $$ $3 $4 $5"#);

    let (_, stdout, _) = output(supervisor.spawn(step).await.unwrap()).await;

    let [pid, group, session, terminal] = stdout.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{stdout}")
    };
    assert_eq!(pid, group);
    assert_ne!(pid, session);
    assert_eq!(terminal, "0");
}

#[tokio::test]
async fn what_cannot_be_started_is_named() {
    let supervisor = rig::start(None).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let file = |name: &str, mode, text: &str| {
        std::fs::write(path(name), text).unwrap();
        std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    file("plain", 0o644, "#!/bin/sh\n");
    file("lost", 0o755, "#!/no/such/interpreter\n");
    file("text", 0o755, "no program\n");
    let refused = async |argv: &[&str], dir: PathBuf| {
        let mut step = script("");
        step.argv = argv.iter().map(OsString::from).collect();
        step.dir = dir;
        supervisor.spawn(step).await.unwrap_err()
    };
    let here = folder.path().to_owned();
    let text = |error: &SpawnError| error.to_string();

    let error = refused(&["no-such-command"], here.clone()).await;
    assert!(matches!(error, SpawnError::CommandNotFound { .. }), "{error:?}");
    assert_eq!(text(&error), "command `no-such-command` not found");
    let error = refused(&["./no-such-command"], here.clone()).await;
    assert!(matches!(error, SpawnError::CommandNotFound { .. }), "{error:?}");
    let error = refused(&["./plain"], here.clone()).await;
    assert!(matches!(error, SpawnError::CommandNotExecutable { .. }), "{error:?}");
    let error = refused(&["/"], here.clone()).await;
    assert!(matches!(error, SpawnError::CommandNotExecutable { .. }), "{error:?}");
    let error = refused(&["./text"], here.clone()).await;
    assert!(matches!(error, SpawnError::CommandNotExecutable { .. }), "{error:?}");
    let error = refused(&["./lost"], here.clone()).await;
    assert!(matches!(error, SpawnError::InterpreterNotFound { .. }), "{error:?}");
    let error = refused(&["true"], path("nowhere")).await;
    assert!(matches!(&error, SpawnError::DirNotFound { dir } if *dir == path("nowhere")), "{error:?}");
    let error = refused(&["true"], path("plain")).await;
    assert!(matches!(error, SpawnError::DirNotUsable { .. }), "{error:?}");
    let error = refused(&["true", "a\0b"], here.clone()).await;
    assert!(matches!(error, SpawnError::InvalidString { .. }), "{error:?}");
    let error = refused(&[], here).await;
    assert!(matches!(error, SpawnError::NoCommand), "{error:?}");

    let (exit, ..) = output(supervisor.spawn(script("true")).await.unwrap()).await;
    assert!(exit.success(), "refused starts leave the supervisor usable");
}

#[tokio::test]
async fn a_command_is_looked_for_in_the_path_of_the_step() {
    let supervisor = rig::start(None).await;
    let folder = tempfile::tempdir().unwrap();
    let command = folder.path().join("only-here");
    // By another process: what this one has open for writing, children of other tests have too until they are another
    // program, and a file that somebody writes cannot be executed.
    let make = r#"printf '#!/bin/sh\necho found\n' > "$0" && chmod 755 "$0""#;
    assert!(std::process::Command::new("sh").args(["-c", make]).arg(&command).status().unwrap().success());
    let mut step = script("");
    step.argv = vec!["only-here".into()];
    step.env = vec![("PATH".into(), format!("/nowhere:{}", folder.path().display()).into())];

    let (_, stdout, _) = output(supervisor.spawn(step).await.unwrap()).await;

    assert_eq!(stdout, "found\n");
}

#[tokio::test]
async fn many_steps_run_at_once() {
    let supervisor = rig::start(None).await;
    let mut children = Vec::new();
    for index in 0..100 {
        children.push(supervisor.spawn(script(&format!("read -r x; exit {index}"))).await.unwrap());
    }

    for (index, child) in children.into_iter().enumerate() {
        let (exit, ..) = output(child).await;
        assert_eq!(exit, Exit::Code(index as i32));
    }
    supervisor.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_end_is_told_although_the_background_lives_on() {
    let supervisor = rig::start(None).await;
    let mark = new_mark();
    let mut child = supervisor.spawn(shell("sleep 1000 & exit 3", &mark)).await.unwrap();

    assert_eq!(child.wait().await.unwrap(), Exit::Code(3));
    drop(child);

    // Another step in between, which must not be given the occupied reaper.
    let (exit, ..) = output(supervisor.spawn(script("true")).await.unwrap()).await;
    assert!(exit.success());
    assert_eq!(marked(&mark).len(), 1);
    assert_eq!(leftovers(&[(rig::MARK, &mark)]).unwrap(), marked(&mark));
    supervisor.shutdown().await.unwrap();
    assert_eq!(marked(&mark), [0_u32; 0]);
}

#[tokio::test]
async fn a_background_that_ended_frees_its_reaper() {
    let supervisor = rig::start(None).await;
    let pid = supervisor.pid().unwrap();
    for _ in 0..20 {
        let mark = new_mark();
        let mut child = supervisor.spawn(shell("sleep 0.01 & exit 0", &mark)).await.unwrap();
        child.wait().await.unwrap();
        drop(child);
        until("the background ends", || marked(&mark).is_empty()).await;
    }

    assert!(rig::children_of(pid).len() <= 3, "{:?}", rig::children_of(pid));
}

#[tokio::test]
async fn a_program_that_is_no_supervisor_is_refused() {
    let program = |path: &str| SupervisorProgram { path: path.into(), arg0: None, args: Vec::new() };

    let error = Supervisor::start(program("/no/such/program"), None).await.unwrap_err();
    assert!(matches!(error, SupervisorError::Start { .. }), "{error:?}");
    let error = Supervisor::start(program("true"), None).await.unwrap_err();
    assert!(matches!(error, SupervisorError::NotServing { .. }), "{error:?}");
}

// What happened: a supervisor that was killed while it started was reported as a program that does not serve, a bug.
// Why: both close their end of the channel, and nobody looked at how the process had ended.
// What stops it now: one that was ended by a signal has ended, and another can be started.
#[tokio::test]
async fn a_supervisor_that_is_killed_while_it_starts_has_ended() {
    let args = ["-c", "kill -9 $$"].map(Into::into).to_vec();

    let error =
        Supervisor::start(SupervisorProgram { path: "sh".into(), arg0: None, args }, None).await.unwrap_err();

    assert!(matches!(error, SupervisorError::Ended), "{error:?}");
}

#[tokio::test]
async fn an_abandoned_start_leaves_nothing() {
    let supervisor = rig::start(None).await;
    let mark = new_mark();
    for delay_us in [0, 50, 100, 200, 400, 800, 1600] {
        for _ in 0..5 {
            let spawn = supervisor.spawn(shell("sleep 1000", &mark));
            let _ = tokio::time::timeout(Duration::from_micros(delay_us), spawn).await;
        }
    }

    until("all abandoned steps are dead", || marked(&mark).is_empty()).await;
    let mut child = supervisor.spawn(script("echo alive")).await.unwrap();
    assert_eq!(line(&mut child).await, "alive");
}

/// A worker that sleeps past its lease cannot end its steps: the supervisor does.
#[tokio::test]
async fn steps_end_with_the_lease_of_a_stopped_engine() {
    let soon = || BootTime::now().after(Duration::from_millis(300));
    let deadline = Deadline::new(soon()).unwrap();
    let descriptor = deadline.try_clone_descriptor().unwrap();
    let program = SupervisorProgram { path: PROGRAM.into(), arg0: None, args: vec!["supervise".into()] };
    let supervisor = Supervisor::start_until(program, None, Some(descriptor)).await.unwrap();
    let mut child = supervisor.spawn(script("sleep 1000")).await.unwrap();

    // A renewal moves the deadline, without a message.
    tokio::time::sleep(Duration::from_millis(150)).await;
    deadline.set(soon()).unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(supervisor.pid().is_some_and(rig::lives));

    assert!(matches!(child.wait().await, Err(SupervisorError::Ended)));
    assert_eq!(deadline.get().unwrap().left(), Duration::ZERO);
}
