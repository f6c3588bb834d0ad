//! A step's output within its limits, masked, and read to its end but not beyond.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use waypost_workflow::log::{Log, LogLimits, LogSink, LogSummary, Recorded, Streams, record};
use waypost_workflow::mask::Mask;
use waypost_workflow::supervisor::{Exit, Output, StepProcess, Supervisor, SupervisorError};

use crate::rig::{self, PROGRAM, marked, new_mark, script, shell, until};

/// Keeps what it is given, chunk by chunk, until it has more than its limit.
#[derive(Clone, Default)]
struct Chunks {
    chunks: Arc<Mutex<Vec<Vec<u8>>>>,
    chunks_max: Option<usize>,
}

impl Chunks {
    fn all(&self) -> Vec<u8> {
        self.chunks.lock().unwrap().concat()
    }
}

#[async_trait]
impl LogSink for Chunks {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut chunks = self.chunks.lock().unwrap();
        if self.chunks_max.is_some_and(|max| chunks.len() >= max) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        chunks.push(bytes.to_vec());
        Ok(())
    }
}

const LIMITS: LogLimits = LogLimits { head_bytes_max: 100, tail_bytes_max: 60 };

async fn logged(limits: LogLimits, writes: &[&[u8]]) -> (Vec<u8>, LogSummary) {
    let sink = Chunks::default();
    let mut log = Log::new(sink.clone(), limits);
    for bytes in writes {
        log.write(bytes).await;
    }
    let (_, summary) = log.finish().await;
    (sink.all(), summary)
}

#[tokio::test]
async fn a_log_within_its_limits_is_kept_whole_at_every_length() {
    let bytes: Vec<u8> = (0..=255).collect();
    for length in 0..=160 {
        for step in [1, 7, 200] {
            let writes: Vec<&[u8]> = bytes[..length].chunks(step).collect();

            let (kept, summary) = logged(LIMITS, &writes).await;

            assert_eq!(kept, bytes[..length]);
            assert_eq!((summary.bytes, summary.dropped_bytes), (length as u64, 0));
            assert_eq!(summary.sha256, <[u8; 32]>::from(Sha256::digest(&bytes[..length])));
        }
    }
}

#[tokio::test]
async fn a_log_above_its_limits_keeps_both_ends_and_reports_a_gap() {
    let bytes: Vec<u8> = (0..5_000_u32).map(|index| (index % 251) as u8).collect();
    for length in [161, 162, 500, 5_000] {
        for step in [1, 7, 64, 10_000] {
            let writes: Vec<&[u8]> = bytes[..length].chunks(step).collect();

            let (kept, summary) = logged(LIMITS, &writes).await;

            let said = format!("\n[waypost: {} bytes omitted here]\n", length - 160);
            assert_eq!(kept, [&bytes[..100], said.as_bytes(), &bytes[length - 60..length]].concat());
            assert_eq!((summary.bytes, summary.dropped_bytes), (length as u64, length as u64 - 160));
            assert_eq!(summary.sha256, <[u8; 32]>::from(Sha256::digest(&bytes[..length])));
        }
    }
}

#[tokio::test]
async fn the_tail_is_the_last_lines() {
    let mut log = Log::new(Chunks::default(), LIMITS);
    assert_eq!(log.tail(3, 100), "");
    log.write(b"one\ntwo\nthree\n").await;
    log.write("vier é\n".as_bytes()).await;

    assert_eq!(log.tail(2, 100), "three\nvier é");
    assert_eq!(log.tail(9, 100), "one\ntwo\nthree\nvier é");
    assert_eq!(log.tail(9, 2), "", "the limit cut the character before the line end");
    assert_eq!(log.tail(9, 3), "é");
    assert_eq!(log.tail(0, 100), "");
    log.write(b"\xff\x00no end").await;
    assert_eq!(log.tail(1, 100), "\u{fffd}\u{0}no end");
}

#[tokio::test(start_paused = true)]
async fn bytes_reach_the_sink_within_200_ms_or_by_64_kib() {
    let sink = Chunks::default();
    let mut log = Log::new(sink.clone(), LogLimits::default());
    assert_eq!(log.flush_at(), None);

    let began = tokio::time::Instant::now();
    log.write(b"a").await;
    tokio::time::advance(Duration::from_millis(150)).await;
    log.write(b"b").await;
    assert_eq!(log.flush_at(), Some(began + Duration::from_millis(200)));
    assert_eq!(sink.all(), b"");
    log.write(&[b'c'; 64 * 1024]).await;

    assert_eq!(log.flush_at(), None);
    assert_eq!(sink.all().len(), 64 * 1024 + 2);
}

#[tokio::test]
async fn a_sink_that_fails_is_told_at_the_end_and_stops_nothing() {
    let sink = Chunks { chunks_max: Some(1), ..Chunks::default() };
    let mut log = Log::new(sink.clone(), LogLimits::default());
    for _ in 0..10 {
        log.write(&[b'x'; 64 * 1024]).await;
    }

    let (_, summary) = log.finish().await;

    assert_eq!(summary.failure.unwrap().kind(), io::ErrorKind::StorageFull);
    assert_eq!(summary.bytes, 640 * 1024);
    assert_eq!(sink.all().len(), 64 * 1024);
}

type Life = Result<Exit, SupervisorError>;

async fn recorded(
    supervisor: &Supervisor,
    step: StepProcess,
    secrets: &[&str],
    capture: Option<usize>,
) -> (Recorded<Life>, Vec<u8>, LogSummary) {
    let mask = Mask::new(secrets.iter().map(|secret| ("S", secret.as_bytes()))).unwrap();
    let mut child = supervisor.spawn(step).await.unwrap();
    let sink = Chunks::default();
    let mut log = Log::new(sink.clone(), LogLimits::default());
    let streams = Streams { stdout: child.stdout.take(), stderr: child.stderr.take() };
    let recorded = record(streams, &mask, &mut log, capture, child.wait()).await;
    let (_, summary) = log.finish().await;
    (recorded, sink.all(), summary)
}

#[tokio::test]
async fn streams_share_one_masked_log_and_stdout_is_captured_raw() {
    let supervisor = rig::start(None).await;
    let text = "printf 'a: swordfish\\n'; printf 'b: sword' >&2; printf 'fish\\n' >&2; exit 5";

    let (recorded, log, summary) = recorded(&supervisor, script(text), &["swordfish"], Some(1000)).await;

    assert_eq!(recorded.life.unwrap(), Exit::Code(5));
    let captured = recorded.captured.unwrap();
    assert!(captured.is_whole());
    assert_eq!(captured.bytes, b"a: swordfish\n");
    let mut lines: Vec<&str> = std::str::from_utf8(&log).unwrap().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a: ***", "b: ***"]);
    assert_eq!(summary.sha256, <[u8; 32]>::from(Sha256::digest(&log)), "the digest is that of what was kept");
}

#[tokio::test]
async fn a_secret_that_comes_in_pieces_with_pauses_is_masked() {
    let supervisor = rig::start(None).await;
    let mut step = script("for p in s w o r d f i s h; do printf $p; echo between >&2; sleep 0.01; done");
    step.output = Output::Separate;

    let (_, log, _) = recorded(&supervisor, step, &["swordfish"], None).await;

    let text = String::from_utf8(log).unwrap().replace("between\n", "");
    assert_eq!(text, "***");
}

#[tokio::test]
async fn a_capture_beyond_its_limit_says_so() {
    let supervisor = rig::start(None).await;

    let (recorded, log, _) = recorded(&supervisor, script("head -c 300000 /dev/zero"), &[], Some(1000)).await;

    let captured = recorded.captured.unwrap();
    assert!(!captured.is_whole());
    assert_eq!((captured.bytes.len(), captured.bytes_total), (1000, 300_000));
    assert_eq!(log.len(), 300_000);
}

#[tokio::test]
async fn a_background_process_with_open_streams_delays_no_end() {
    let supervisor = rig::start(None).await;
    let mark = new_mark();
    let text = "(trap '' PIPE; while sleep 0.001; do echo noise || exit; done) & head -c 60000 /dev/zero; echo; echo done";

    let (recorded, log, _) = recorded(&supervisor, shell(text, &mark), &[], None).await;

    assert_eq!(recorded.life.unwrap(), Exit::Code(0));
    let text = String::from_utf8(log).unwrap();
    assert!(text.lines().any(|line| line == "done"), "all that the main process wrote is there");
    // It writes on, more than a pipe holds, and neither dies of it nor hangs.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!marked(&mark).is_empty());
    supervisor.shutdown().await.unwrap();
    until("the background dies", || marked(&mark).is_empty()).await;
}

#[tokio::test]
async fn what_a_step_says_while_it_is_told_to_end_is_in_the_log() {
    let supervisor = rig::start(None).await;
    // The shell says `Terminated` of its `sleep` on stderr, in any order with the lines on stdout.
    let text = "exec 2>/dev/null; trap 'head -c 200000 /dev/zero; echo bye; exit 3' TERM; echo up; \
                while :; do sleep 0.01; done";
    let mut child = supervisor.spawn(script(text)).await.unwrap();
    let sink = Chunks::default();
    let mut log = Log::new(sink.clone(), LogLimits::default());
    assert_eq!(rig::line(&mut child).await, "up");
    let streams = Streams { stdout: child.stdout.take(), stderr: child.stderr.take() };

    let life = child.cancel(Duration::from_secs(50));
    let recorded = record(streams, &Mask::default(), &mut log, None, life).await;

    assert_eq!(recorded.life.unwrap(), Exit::Code(3));
    log.finish().await;
    assert!(sink.all().ends_with(b"\0bye\n"));
}

#[tokio::test]
async fn what_was_written_before_the_end_is_read_however_late() {
    let (mut writer, reader) = tokio::net::unix::pipe::pipe().unwrap();
    let sink = Chunks::default();
    let mut log = Log::new(sink.clone(), LogLimits::default());
    let streams = Streams { stdout: Some(reader), stderr: None };

    let life = async {
        writer.write_all(b"first ").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        writer.try_write(b"last").unwrap();
        // Before the runtime hears of that, the processor is taken away for longer than streams are drained.
        tokio::spawn(async { std::thread::sleep(Duration::from_millis(300)) });
    };
    record(streams, &Mask::default(), &mut log, None, life).await;

    log.finish().await;
    assert_eq!(sink.all(), b"first last");
}

#[test]
fn a_gigabyte_of_output_takes_little_memory() {
    let mut command = Command::new(PROGRAM);
    command.args(["record", "head -c 1073741824 /dev/zero"]).stdout(Stdio::piped());

    let said = String::from_utf8(command.output().unwrap().stdout).unwrap();

    let [bytes, _seconds, peak_kib] = said.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{said}")
    };
    assert_eq!(bytes, "1073741824");
    // The program itself takes 8 MiB when built for tests.
    assert!(peak_kib.parse::<u64>().unwrap() < 20 * 1024, "{peak_kib} KiB");
}
