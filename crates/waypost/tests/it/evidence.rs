//! Evidence: verdicts are earned, paths stay below their folder, checks keep to their limits.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tempfile::TempDir;
use waypost::Digest;
use waypost::evidence::{
    CLAIMS_MAX, Cost, Finding, InvalidPack, Limits, Probe, ProbeKind, Sha256Probe, Site, Verifier,
};
use waypost::record::{Claim, Pack, Verdict};

mod caller_probes;

/// Makes a folder with `a.txt` (`alpha`), `empty`, `sub/b.txt` (`beta`), and a sibling file outside the limit of
/// every path.
fn folder() -> TempDir {
    let outer = tempfile::tempdir().unwrap();
    let base = outer.path().join("base");
    fs::create_dir_all(base.join("sub")).unwrap();
    fs::write(base.join("a.txt"), "alpha").unwrap();
    fs::write(base.join("empty"), "").unwrap();
    fs::write(base.join("sub/b.txt"), "beta").unwrap();
    fs::write(outer.path().join("outside.txt"), "secret").unwrap();
    outer
}

fn site(outer: &TempDir) -> Site {
    Site::beneath(outer.path().join("base"))
}

/// Checks one claim. Returns the verdict, the found value, and the reason.
async fn judged(claim: Claim, site: &Site) -> (Verdict, Value, String) {
    let mut pack = Verifier::new().verify(&Pack::all([claim]), site).await;
    let claim = pack.claims.remove(0);
    assert!(claim.checked_at.is_some());
    (claim.verdict, claim.found, claim.error.unwrap_or_default())
}

async fn verdict(claim: Claim, site: &Site) -> Verdict {
    judged(claim, site).await.0
}

fn with_verdicts(at_least: Option<u32>, verdicts: &[Verdict]) -> Pack {
    let claim =
        |(name, verdict): (usize, &Verdict)| Claim { verdict: *verdict, ..Claim::exists(name.to_string()) };
    Pack { at_least, claims: verdicts.iter().enumerate().map(claim).collect() }
}

#[tokio::test]
async fn verdicts_are_earned() {
    let outer = folder();
    let site = site(&outer).with_exit_code(Some(0));
    let verifier = Verifier::new();

    let never_ok = [
        ("no expected digest", Claim::new("file_sha256", "a.txt")),
        ("an empty expected digest", Claim::new("file_sha256", "a.txt").expecting("")),
        ("a digest cut short", Claim::new("file_sha256", "a.txt").expecting("ab12")),
        ("a number as a digest", Claim::new("file_sha256", "a.txt").expecting(12)),
        ("a pin never taken", Claim::unchanged("a.txt")),
        ("no expected exit code", Claim::new("command_exit", "make")),
        ("an empty list of exit codes", Claim::new("command_exit", "make").expecting(json!([]))),
        ("a text as an exit code", Claim::new("command_exit", "make").expecting("0")),
        ("a fraction as an exit code", Claim::new("command_exit", "make").expecting(0.5)),
        ("a glob, which nothing here matches", Claim::exists("*.txt")),
        ("an unknown expectation", Claim::exists("a.txt").expecting(json!({ "contains": "alpha" }))),
        ("an unknown type", Claim::exists("a.txt").expecting(json!({ "type": "fifo" }))),
        ("a null type", Claim::exists("a.txt").expecting(json!({ "type": null }))),
        ("a null size", Claim::exists("a.txt").expecting(json!({ "size": null }))),
        ("a list as an expectation", Claim::exists("a.txt").expecting(json!([]))),
        ("an unknown kind", Claim::new("magic", "a.txt").expecting(true)),
        ("an empty path", Claim::exists("")),
    ];

    for (what, claim) in never_ok {
        let pack = verifier.verify(&Pack::all([claim]), &site).await;
        assert_ne!(pack.verdict(), Verdict::Ok, "{what}: {pack:?}");
        assert!(pack.claims[0].error.is_some() || !pack.claims[0].found.is_null(), "{what} says why");
    }
    let empty = verifier.verify(&Pack::all([]), &site).await;
    assert_eq!((empty.verdict(), empty.summary().satisfied), (Verdict::Failed, false));
}

#[test]
fn an_empty_pack_holds_for_nothing() {
    for at_least in [None, Some(0), Some(1)] {
        let pack = with_verdicts(at_least, &[]);
        assert_eq!(pack.verdict(), Verdict::Failed);
        assert_eq!(pack.summary().rate, 0.0);
    }
}

#[test]
fn a_rule_with_zero_or_too_many_claims_is_refused() {
    let claims = || vec![Claim::exists("a"), Claim::exists("b")];

    for count in [0, 3] {
        let error = Pack::at_least(count, claims()).unwrap_err();
        assert_eq!(error, InvalidPack::AtLeast { at_least: count, claims: 2 });
        let forged = with_verdicts(Some(count), &[Verdict::Ok, Verdict::Ok]);
        assert_eq!(forged.verdict(), Verdict::Failed);
    }
    assert!(Pack::at_least(2, claims()).is_ok());
    assert!(Pack::any([]).check().is_err());
    let many = Pack::all((0..=CLAIMS_MAX).map(|index| Claim::exists(index.to_string())));
    assert_eq!(many.check().unwrap_err(), InvalidPack::TooMany(CLAIMS_MAX + 1));
}

#[test]
fn a_pack_comes_to_what_its_rule_says() {
    use Verdict::{Failed as F, Ok as O, Skipped as S, Unknown as U};
    let table: [(Option<u32>, &[Verdict], Verdict); 14] = [
        (None, &[O, O], O),
        (None, &[O, F], F),
        (None, &[O, U], U),
        (None, &[F, U], F),
        (None, &[S, S], S),
        (None, &[O, S], S),
        (None, &[U, S], U),
        (Some(2), &[O, O, F], O),
        (Some(2), &[O, F, F], F),
        (Some(2), &[O, U, F], U),
        (Some(2), &[O, O, U], O),
        (Some(1), &[F, F, O], O),
        (Some(1), &[F, F, S], S),
        (Some(1), &[F, F, F], F),
    ];

    for (at_least, verdicts, expect) in table {
        assert_eq!(with_verdicts(at_least, verdicts).verdict(), expect, "{at_least:?} of {verdicts:?}");
    }
}

#[test]
fn a_summary_counts_and_gives_the_rate() {
    use Verdict::{Failed, Ok, Skipped, Unknown};

    let summary = with_verdicts(Some(2), &[Ok, Ok, Failed, Unknown, Skipped]).summary();

    assert_eq!(
        serde_json::to_value(summary).unwrap(),
        json!({ "total": 5, "ok": 2, "failed": 1, "unknown": 1, "skipped": 1, "rate": 0.4, "satisfied": true })
    );
}

#[tokio::test]
async fn a_file_or_folder_is_there_as_expected() {
    let outer = folder();
    symlink("a.txt", outer.path().join("base/link")).unwrap();
    symlink("sub", outer.path().join("base/folder link")).unwrap();
    rustix_fifo(&outer.path().join("base/pipe"));
    let site = site(&outer);
    let typed = |path: &str, kind: &str| Claim::exists(path).expecting(json!({ "type": kind }));
    let sized = |size: Value| Claim::exists("a.txt").expecting(json!({ "size": size }));

    let holds = [
        Claim::exists("a.txt"),
        Claim::exists("./sub//b.txt"),
        Claim::exists("sub"),
        Claim::exists("."),
        Claim::exists("sub/"),
        Claim::exists("folder link/"),
        Claim::file("a.txt"),
        Claim::file("link"),
        typed("sub", "directory"),
        typed("link", "symlink"),
        typed("sub", "any"),
        sized(json!(5)),
        sized(json!("5")),
        sized(json!(">= 5B")),
        sized(json!("< 1 KiB")),
        sized(json!("!= 6")),
        sized(json!([1, "> 4"])),
        Claim::exists("empty").expecting(json!({ "size": 0, "type": "file" })),
    ];
    for claim in holds {
        let text = format!("{claim:?}");
        assert_eq!(verdict(claim, &site).await, Verdict::Ok, "{text}");
    }
    let fails = [
        Claim::exists("gone.txt"),
        Claim::exists("a.txt/b"),
        Claim::exists("a.txt/"),
        Claim::exists("link/"),
        Claim::file("sub"),
        typed("a.txt", "directory"),
        typed("a.txt", "symlink"),
        Claim::exists("pipe"),
        sized(json!(4)),
        sized(json!("> 5")),
        sized(json!("5 parsecs")),
        sized(json!(-5)),
        sized(json!([])),
        Claim::exists("sub").expecting(json!({ "size": ">= 0" })),
    ];
    for claim in fails {
        let text = format!("{claim:?}");
        assert_eq!(verdict(claim, &site).await, Verdict::Failed, "{text}");
    }
    assert_eq!(judged(Claim::file("a.txt"), &site).await.1, json!({ "type": "file", "size": 5 }));
}

fn rustix_fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[tokio::test]
async fn a_digest_is_compared_with_the_bytes() {
    let outer = folder();
    let site = site(&outer);
    let digest = Digest::of(b"alpha");

    let right = judged(Claim::sha256("a.txt", digest), &site).await;
    let shouted = Claim::new("file_sha256", "a.txt").expecting(digest.to_string().to_uppercase());
    let wrong = judged(Claim::sha256("sub/b.txt", digest), &site).await;

    assert_eq!(right, (Verdict::Ok, json!(digest.to_string()), String::new()));
    assert_eq!(verdict(shouted, &site).await, Verdict::Ok);
    assert_eq!(wrong.0, Verdict::Failed);
    assert_eq!(wrong.1, json!(Digest::of(b"beta").to_string()), "what was found is told");
    assert_eq!(verdict(Claim::sha256("empty", Digest::of(b"")), &site).await, Verdict::Ok);
    assert_eq!(verdict(Claim::sha256("sub", digest), &site).await, Verdict::Failed, "a folder has another");
    assert_eq!(verdict(Claim::sha256("gone", digest), &site).await, Verdict::Failed);
}

#[tokio::test]
async fn a_file_of_many_chunks_has_the_digest_of_all_of_them() {
    let outer = folder();
    let bytes: Vec<u8> = (0..1_000_003_u32).map(|index| index as u8).collect();
    fs::write(outer.path().join("base/large"), &bytes).unwrap();

    let found = verdict(Claim::sha256("large", Digest::of(&bytes)), &site(&outer)).await;

    assert_eq!(found, Verdict::Ok);
}

#[tokio::test]
async fn an_unchanged_file_is_not_read_again_on_request() {
    let outer = folder();
    let site = site(&outer);
    let written = fs::metadata(outer.path().join("base/a.txt")).unwrap().modified().unwrap();
    let written = jiff::Timestamp::try_from(written).unwrap();
    let clock = Arc::new(waypost_testing::TestClock::at(written));
    let probe = Arc::new(Sha256Probe::remembering(clock.clone()));
    let verifier = Verifier::new().with_probe(probe.clone());
    let pack = Pack::all([Claim::sha256("a.txt", Digest::of(b"alpha"))]);
    let mut reads = Vec::new();
    let mut check = async |expect| {
        assert_eq!(verifier.verify(&pack, &site).await.verdict(), expect);
        reads.push(probe.files_read());
    };

    check(Verdict::Ok).await;
    check(Verdict::Ok).await;
    clock.pass(Duration::from_secs(60));
    check(Verdict::Ok).await;
    check(Verdict::Ok).await;
    fs::write(outer.path().join("base/a.txt"), "gamma").unwrap();
    check(Verdict::Failed).await;

    assert_eq!(reads, [1, 2, 3, 3, 4], "not just after a write, then once, then not, then as it changed");
}

#[tokio::test]
async fn a_pipe_is_refused_and_not_waited_for() {
    let outer = folder();
    rustix_fifo(&outer.path().join("base/pipe"));

    let (verdict, _, why) = judged(Claim::sha256("pipe", Digest::of(b"")), &site(&outer)).await;

    assert_eq!((verdict, why.as_str()), (Verdict::Failed, "the path is not a regular file"));
}

#[tokio::test]
async fn no_path_leaves_the_base_folder() {
    let outer = folder();
    let base = outer.path().join("base");
    let outside = outer.path().join("outside.txt");
    symlink("../outside.txt", base.join("up")).unwrap();
    symlink(&outside, base.join("absolute")).unwrap();
    symlink("..", base.join("parent")).unwrap();
    symlink("sub/../../outside.txt", base.join("winding")).unwrap();
    symlink("loop-b", base.join("loop-a")).unwrap();
    symlink("loop-a", base.join("loop-b")).unwrap();
    let site = site(&outer);
    let secret = Digest::of(b"secret");

    let escapes = [
        "../outside.txt",
        "sub/../../outside.txt",
        "sub/../a.txt",
        outside.to_str().unwrap(),
        "up",
        "absolute",
        "parent/outside.txt",
        "winding",
        "loop-a",
        "a.txt\0",
    ];

    for path in escapes {
        assert_eq!(verdict(Claim::sha256(path, secret), &site).await, Verdict::Failed, "{path:?}");
        assert_eq!(verdict(Claim::exists(path), &site).await, Verdict::Failed, "{path:?}");
    }
}

#[tokio::test]
async fn links_that_stay_inside_are_followed() {
    let outer = folder();
    let base = outer.path().join("base");
    symlink("sub", base.join("latest")).unwrap();
    symlink("../a.txt", base.join("sub/back")).unwrap();
    symlink("latest/back", base.join("twice")).unwrap();
    let site = site(&outer);

    for (path, text) in [("latest/b.txt", "beta"), ("sub/back", "alpha"), ("twice", "alpha")] {
        let claim = Claim::sha256(path, Digest::of(text.as_bytes()));
        assert_eq!(verdict(claim, &site).await, Verdict::Ok, "{path}");
    }
    assert_eq!(verdict(Claim::exists("latest"), &site).await, Verdict::Ok);
}

#[tokio::test]
async fn an_absolute_path_needs_a_folder_that_is_allowed() {
    let outer = folder();
    let outside = outer.path().join("outside.txt");
    let claim = || Claim::sha256(outside.to_str().unwrap(), Digest::of(b"secret"));

    let allowed = site(&outer).allowing(outer.path());

    assert_eq!(verdict(claim(), &site(&outer)).await, Verdict::Failed);
    assert_eq!(verdict(claim(), &allowed).await, Verdict::Ok);
    let up = format!("{}/base/../outside.txt", outer.path().display());
    assert_eq!(verdict(Claim::exists(up), &allowed).await, Verdict::Failed);
}

#[tokio::test]
async fn without_a_folder_nothing_is_known_about_files() {
    let outer = folder();
    let gone = Site::beneath(outer.path().join("no such folder"));

    for site in [Site::nowhere(), gone] {
        let (verdict, _, why) = judged(Claim::exists("a.txt"), &site).await;
        assert_eq!(verdict, Verdict::Unknown, "{why}");
    }
}

/// A file whose start the kernel lets no process read represents an unreadable file.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_cannot_be_read_is_unknown() {
    let site = Site::nowhere().allowing("/proc");

    let (verdict, _, why) = judged(Claim::sha256("/proc/self/mem", Digest::of(b"")), &site).await;

    assert_eq!(verdict, Verdict::Unknown);
    assert!(why.starts_with("cannot read the file: "), "{why}");
}

#[tokio::test]
async fn an_exit_code_is_compared_and_not_merely_given() {
    let claim = |expect: Value| Claim::new("command_exit", "false; rm -rf /").expecting(expect);
    let with = |code: Option<i32>| Site::nowhere().with_exit_code(code);

    assert_eq!(verdict(claim(json!(0)), &with(Some(0))).await, Verdict::Ok);
    assert_eq!(verdict(claim(json!([0, 3])), &with(Some(3))).await, Verdict::Ok);
    assert_eq!(verdict(claim(json!(0)), &with(Some(1))).await, Verdict::Failed);
    assert_eq!(verdict(claim(json!([1, 2])), &with(Some(0))).await, Verdict::Failed);
    assert_eq!(verdict(claim(json!(0)), &with(None)).await, Verdict::Failed, "nothing was recorded");
    let pinned = Claim::new("command_exit", "make").pinning();
    let pack = Verifier::new().commit(&Pack::all([pinned]), &with(Some(1))).await;
    assert_eq!(pack.verdict(), Verdict::Failed, "cannot be pinned");
}

#[tokio::test]
async fn a_pin_is_taken_at_commit_and_holds_until_the_file_changes() {
    let outer = folder();
    let site = site(&outer);
    let verifier = Verifier::new();

    let pinned = verifier.commit(&Pack::all([Claim::exists("sub"), Claim::unchanged("a.txt")]), &site).await;
    let again = verifier.verify(&pinned, &site).await;
    fs::write(outer.path().join("base/a.txt"), "other").unwrap();
    let changed = verifier.verify(&pinned, &site).await;

    assert_eq!(pinned.claims[1].expect, json!(Digest::of(b"alpha").to_string()));
    assert!(pinned.claims[1].pinned && pinned.claims[0].kind == "artifact_exists");
    assert_eq!((pinned.verdict(), again.verdict()), (Verdict::Ok, Verdict::Ok));
    assert_eq!(changed.claims[1].verdict, Verdict::Failed);
}

#[tokio::test]
async fn a_pin_is_taken_even_when_nothing_is_checked() {
    let outer = folder();
    let site = site(&outer);
    let verifier = Verifier::new();
    let claims = [Claim::unchanged("a.txt"), Claim::unchanged("gone"), Claim::exists("gone")];

    let pinned = verifier.pin(&Pack::all(claims), &site).await;
    fs::write(outer.path().join("base/gone"), "it came later").unwrap();
    let later = verifier.verify(&pinned, &site).await;

    assert!(pinned.claims.iter().all(|claim| claim.verdict == Verdict::Skipped));
    assert_eq!(pinned.verdict(), Verdict::Skipped);
    let verdicts: Vec<_> = later.claims.iter().map(|claim| claim.verdict).collect();
    assert_eq!(verdicts, [Verdict::Ok, Verdict::Failed, Verdict::Ok], "{later:?}");
}

#[tokio::test]
async fn verdicts_that_a_caller_wrote_count_for_nothing() {
    let outer = folder();
    let forged = Claim { verdict: Verdict::Ok, found: json!("x"), ..Claim::exists("gone") };

    let checked = Verifier::new().commit(&Pack::all([forged.clone()]), &site(&outer)).await;
    let pinned = Verifier::new().pin(&Pack::all([forged]), &site(&outer)).await;

    assert_eq!(checked.verdict(), Verdict::Failed);
    assert_eq!((pinned.verdict(), &pinned.claims[0].found), (Verdict::Skipped, &Value::Null));
}

/// A scripted probe that notes its requests in order.
#[derive(Debug)]
struct Told {
    kind: &'static str,
    cost: Cost,
    /// The number of first replies that are unknown.
    unknown_first: u32,
    asked: AtomicU32,
    /// Never replies.
    hangs: bool,
    trace: Arc<Mutex<Vec<String>>>,
    running: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
}

impl Told {
    fn new(kind: &'static str, cost: Cost) -> Self {
        Self {
            kind,
            cost,
            unknown_first: 0,
            asked: AtomicU32::new(0),
            hangs: false,
            trace: Arc::default(),
            running: Arc::default(),
            most: Arc::default(),
        }
    }
}

#[async_trait]
impl Probe for Told {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(self.kind, self.cost).live()
    }

    async fn check(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
        self.trace.lock().unwrap().push(claim.subject.clone());
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        if self.hangs {
            std::future::pending::<()>().await;
        }
        tokio::task::yield_now().await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        if self.asked.fetch_add(1, Ordering::SeqCst) < self.unknown_first {
            return Err(Finding::unknown_yet("not up yet"));
        }
        Ok(Finding::ok(true))
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_unknown_is_asked_again_until_it_is_known() {
    let probe = Arc::new(Told { unknown_first: 3, ..Told::new("port", Cost::Waiting) });
    let verifier = Verifier::new().with_probe(probe.clone());

    let pack = verifier.verify(&Pack::all([Claim::new("port", "8089")]), &Site::nowhere()).await;

    assert_eq!(pack.verdict(), Verdict::Ok);
    assert_eq!(probe.asked.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn asking_again_comes_to_an_end() {
    let probe = Arc::new(Told { unknown_first: u32::MAX, ..Told::new("port", Cost::Waiting) });
    let verifier = Verifier::new().with_probe(probe.clone());

    let pack = verifier.verify(&Pack::all([Claim::new("port", "8089")]), &Site::nowhere()).await;

    assert_eq!(pack.claims[0].verdict, Verdict::Unknown);
    assert_eq!(pack.claims[0].error.as_deref(), Some("not up yet"));
    assert_eq!(probe.asked.load(Ordering::SeqCst), 5);
}

#[tokio::test(start_paused = true)]
async fn a_check_without_an_answer_is_unknown_and_blocks_no_other() {
    let stuck = Arc::new(Told { hangs: true, ..Told::new("stuck", Cost::Waiting) });
    let verifier = Verifier::new()
        .with_probe(stuck)
        .with_probe(Arc::new(Told::new("port", Cost::Waiting)))
        .with_limits(Limits { parallel: 1, ..Limits::default() });

    let claims = [Claim::new("stuck", "a"), Claim::new("port", "b")];
    let pack = verifier.verify(&Pack::all(claims), &Site::nowhere()).await;

    assert_eq!(pack.claims[0].verdict, Verdict::Unknown);
    assert_eq!(pack.claims[0].error.as_deref(), Some("no result within 10s"));
    assert_eq!(pack.claims[1].verdict, Verdict::Ok);
}

#[tokio::test(start_paused = true)]
async fn the_whole_has_a_budget_too() {
    let stuck = Arc::new(Told { hangs: true, ..Told::new("stuck", Cost::Waiting) });
    let (claim, pack) = (Duration::from_secs(10), Duration::from_secs(15));
    let limits = Limits { claim, pack, parallel: 1, ..Limits::default() };
    let verifier = Verifier::new().with_probe(stuck.clone()).with_limits(limits);
    let begun = tokio::time::Instant::now();

    let claims = (0..5).map(|index| Claim::new("stuck", index.to_string()));
    let pack = verifier.verify(&Pack::all(claims), &Site::nowhere()).await;

    assert_eq!(begun.elapsed(), Duration::from_secs(15));
    assert_eq!(pack.summary().unknown, 5);
    assert_eq!(stuck.trace.lock().unwrap().len(), 2, "the others were not begun");
}

#[tokio::test(start_paused = true)]
async fn so_many_checks_run_at_once_and_no_more() {
    let probe = Arc::new(Told::new("port", Cost::Waiting));
    let verifier =
        Verifier::new().with_probe(probe.clone()).with_limits(Limits { parallel: 3, ..Limits::default() });

    let claims = (0..20).map(|index| Claim::new("port", index.to_string()));
    let pack = verifier.verify(&Pack::all(claims), &Site::nowhere()).await;

    assert_eq!(pack.summary().ok, 20);
    assert_eq!(probe.most.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn cheap_checks_come_first_and_the_pack_keeps_its_order() {
    let trace = Arc::default();
    let told = |kind, cost| Arc::new(Told { trace: Arc::clone(&trace), ..Told::new(kind, cost) });
    let verifier = Verifier::new()
        .with_probe(told("remote", Cost::Waiting))
        .with_probe(told("read", Cost::Reading))
        .with_probe(told("noted", Cost::Recorded))
        .with_limits(Limits { parallel: 1, ..Limits::default() });

    let claims = [Claim::new("remote", "r"), Claim::new("read", "f"), Claim::new("noted", "n")];
    let pack = verifier.verify(&Pack::all(claims), &Site::nowhere()).await;

    assert_eq!(*trace.lock().unwrap(), ["n", "f", "r"]);
    let order: Vec<_> = pack.claims.iter().map(|claim| claim.subject.as_str()).collect();
    assert_eq!(order, ["r", "f", "n"]);
}

#[tokio::test]
async fn a_commit_records_what_dies_with_the_machine() {
    let outer = folder();
    let verifier = Verifier::new().with_probe(Arc::new(Told::new("port", Cost::Waiting)));

    let pack = Pack::all([Claim::new("port", "8089"), Claim::exists("a.txt")]);
    let committed = verifier.commit(&pack, &site(&outer)).await;

    assert!(committed.claims[0].live && !committed.claims[1].live);
}

#[tokio::test]
async fn a_probe_of_the_users_takes_the_place_of_ours() {
    let verifier = Verifier::new().with_probe(Arc::new(Told::new("artifact_exists", Cost::Asking)));

    let pack = verifier.verify(&Pack::all([Claim::exists("gone")]), &Site::nowhere()).await;

    assert_eq!(pack.verdict(), Verdict::Ok);
}
