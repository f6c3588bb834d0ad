//! A channel that fails between processes that are well: what could not be told must end, and nobody may wait for it.
//!
//! The faults are made by the kernel itself: a filter on one thread answers a call of it with an error.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use waypost_workflow::supervisor::SupervisorError;

use crate::rig::{self, line, marked, new_mark, shell, until};

/// From now on, the kernel refuses that call to this thread, and to nobody else.
fn refuse(call: libc::c_long) {
    let filter = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The number of the call is the first word of what the filter is given.
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::try_from(call).unwrap()),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EIO as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    #[expect(unsafe_code, reason = "no safe call installs a filter")]
    // SAFETY: both calls only set what this thread may do; the kernel copies the program, which is alive until then.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Runs a test on a thread of its own, which the filter dies with.
fn on_own_thread<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let test =
        || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    std::thread::spawn(test).join().unwrap();
}

/// How long a test waits for what must not hang: half the time after which a reaper that does not answer is killed.
const PATIENCE: Duration = Duration::from_secs(15);

const STEP: &str = "trap '' TERM; echo ready; while :; do sleep 1000; done";

// What happened: when one message between engine and reaper failed, the run hung for ever.
// Why: a reaper that could not be talked with counted as dead, and its death was waited for.
// What stops it now: it is killed first.
#[test]
fn a_step_that_cannot_be_heard_ends() {
    on_own_thread(|| async {
        let mark = new_mark();
        let supervisor = rig::start(None).await;
        let mut child = supervisor.spawn(shell(STEP, &mark)).await.unwrap();
        assert_eq!(line(&mut child).await, "ready");
        refuse(libc::SYS_recvmsg);

        // Anything that it has to say: no message, and the call would not be made.
        let cancelled = tokio::time::timeout(PATIENCE, child.cancel(Duration::from_millis(10))).await;

        assert!(cancelled.expect("it does not hang").is_err());
        until("the tree is dead", || marked(&mark).is_empty()).await;
    });
}

#[test]
fn a_step_that_cannot_be_told_ends_with_its_run() {
    on_own_thread(|| async {
        let mark = new_mark();
        let supervisor = rig::start(None).await;
        let mut child = supervisor.spawn(shell(STEP, &mark)).await.unwrap();
        assert_eq!(line(&mut child).await, "ready");
        refuse(libc::SYS_sendmsg);

        let cancelled = tokio::time::timeout(PATIENCE, child.cancel(Duration::from_secs(50))).await;

        assert!(matches!(cancelled.expect("it does not hang"), Err(SupervisorError::Ended)));
        assert!(marked(&mark).is_empty(), "it is told only when all is dead");
        assert!(supervisor.spawn(shell(STEP, &mark)).await.is_err());
    });
}
