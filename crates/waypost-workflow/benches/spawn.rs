//! What a step costs beside the raw limit: `sh -c true` under the supervisor, and by `std::process`.
//!
//! Both in one run, interleaved, so that the ratio means something on a busy machine.

#![expect(clippy::print_stdout, reason = "the answer of a benchmark")]
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has no answer")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use waypost_workflow::supervisor::{Output, Stdin, StepProcess, Supervisor, SupervisorProgram};

const ROUNDS: usize = 7;
const STEPS: u32 = 200;

fn main() {
    // As the test runner starts it, it has nothing to measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let program = SupervisorProgram {
            path: env!("CARGO_BIN_EXE_waypost-supervise-test").into(),
            arg0: None,
            args: vec!["supervise".into()],
        };
        let began = Instant::now();
        let supervisor = Supervisor::start(program, None).await.unwrap();
        println!("start of the supervisor: {:.2} ms", began.elapsed().as_secs_f64() * 1e3);
        let (mut raw, mut piped, mut ours) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            raw.push(each(|| by_std(Stdio::null)));
            piped.push(each(|| by_std(Stdio::piped)));
            let began = Instant::now();
            for _ in 0..STEPS {
                by_supervisor(&supervisor).await;
            }
            ours.push(began.elapsed() / STEPS);
        }
        let [raw, piped, ours] = [raw, piped, ours].map(median);
        println!("std::process            {:.3} ms", raw.as_secs_f64() * 1e3);
        println!("std::process, 2 pipes   {:.3} ms", piped.as_secs_f64() * 1e3);
        println!("supervisor, 1 pipe      {:.3} ms", ours.as_secs_f64() * 1e3);
        println!("ratio to std            {:.2}", ours.as_secs_f64() / raw.as_secs_f64());
        println!("ratio to std with pipes {:.2}", ours.as_secs_f64() / piped.as_secs_f64());
        supervisor.shutdown().await.unwrap();
    });
}

fn each(mut step: impl FnMut()) -> Duration {
    let began = Instant::now();
    (0..STEPS).for_each(|_| step());
    began.elapsed() / STEPS
}

fn by_std(output: fn() -> Stdio) {
    let mut command = Command::new("/bin/sh");
    let child = command.args(["-c", "true"]).stdin(Stdio::null()).stdout(output()).stderr(output()).spawn();
    assert!(child.unwrap().wait_with_output().unwrap().status.success());
}

async fn by_supervisor(supervisor: &Supervisor) {
    let step = StepProcess {
        argv: vec!["/bin/sh".into(), "-c".into(), "true".into()],
        env: std::env::vars_os().collect(),
        dir: PathBuf::from("/"),
        stdin: Stdin::Empty,
        output: Output::Merged,
    };
    let mut child = supervisor.spawn(step).await.unwrap();
    let mut written = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut written).await.unwrap();
    assert!(child.wait().await.unwrap().success());
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
