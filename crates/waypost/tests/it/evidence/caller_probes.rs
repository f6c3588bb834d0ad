//! Failing probes of a caller, and packs that can never hold.

use waypost::record::{Occasion, Severity, Terms};

use super::*;

/// A probe whose subject selects its behaviour.
#[derive(Debug)]
struct Wild;

#[async_trait]
impl Probe for Wild {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new("wild", Cost::Asking)
    }

    fn glance(&self, _: &[&Claim], _: &Site) -> Vec<Option<Finding>> {
        panic!("as it was told to")
    }

    async fn check(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
        match &*claim.subject {
            "panic" => panic!("as it was told to"),
            "hang" => std::future::pending().await,
            _ => Ok(Finding::ok(true)),
        }
    }

    async fn pin(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
        match &*claim.subject {
            "panic" => panic!("as it was told to"),
            "null" => Ok(Finding::ok(Value::Null)),
            _ => Ok(Finding::ok(1)),
        }
    }
}

fn verifier() -> Verifier {
    Verifier::new().with_probe(Arc::new(Wild))
}

fn wild(subject: &str) -> Claim {
    Claim::new("wild", subject)
}

fn why(claim: &Claim) -> (Verdict, &str) {
    (claim.verdict, claim.error.as_deref().unwrap_or_default())
}

fn warns(claim: Claim) -> Claim {
    claim.on_terms(Terms { severity: Severity::Warn, ..Terms::default() })
}

/// Bug: a probe that panicked killed its run. Cause: the engine called the probe directly. Fix: the verifier
/// catches the panic, and the claim is `unknown`.
#[tokio::test]
async fn a_check_pin_or_glance_that_panics_makes_its_claim_unknown() {
    let glanced = Claim { stamp: Some("s".to_owned()), ..wild("x").expecting(1) };
    let fast = Terms { fast: true, ..Terms::default() };
    let claims = [wild("panic"), wild("panic").pinning(), wild("panic").on_terms(not()), wild("x")];

    let committed = verifier().commit(&Pack::all(claims), &Site::nowhere()).await;
    let later = verifier().verify(&Pack::all([glanced.on_terms(fast), wild("x")]), &Site::nowhere()).await;

    let panicked = (Verdict::Unknown, "the probe for claims of kind `wild` panicked");
    let unknown: Vec<_> = committed.claims.iter().take(3).chain(later.claims.first()).map(why).collect();
    assert_eq!(unknown, [panicked; 4]);
    assert_eq!([&committed.claims[3], &later.claims[1]].map(|claim| claim.verdict), [Verdict::Ok; 2]);
}

fn not() -> Terms {
    Terms { not: true, ..Terms::default() }
}

#[tokio::test]
async fn a_pin_that_can_never_hold_is_refused_when_it_is_taken() {
    let outer = folder();
    let claims = [wild("null").pinning(), Claim::unchanged("a.txt").on_terms(not()), wild("x").pinning()];

    let committed = verifier().commit(&Pack::all(claims), &site(&outer)).await;

    let [null, negated, pinned] = &committed.claims[..] else { panic!("three claims") };
    assert_eq!(null.verdict, Verdict::Failed);
    assert!(why(null).1.starts_with("found null"), "{null:?}");
    assert_eq!(negated.verdict, Verdict::Failed);
    assert!(why(negated).1.contains("`not` conflicts with a pinned value"), "{negated:?}");
    assert_eq!((pinned.verdict, &pinned.expect), (Verdict::Ok, &json!(1)));
}

#[tokio::test]
async fn a_claim_says_its_own_time_where_that_was_over() {
    let timeout = |ms| Terms { timeout_ms: Some(ms), ..Terms::default() };
    for (ms, told) in [(20, "no result within 20ms"), (1_000, "no result within 1s")] {
        let hanging = Pack::all([wild("hang").on_terms(timeout(ms))]);
        let checked = verifier().verify(&hanging, &Site::nowhere()).await;
        assert_eq!(why(&checked.claims[0]), (Verdict::Unknown, told));
    }
    let limits = Limits { all: Duration::from_millis(30), ..Limits::default() };
    let claims = [(wild("hang"), Site::nowhere())];
    let checked = verifier().with_limits(limits).verify_all(&claims).await;
    assert!(why(&checked[0]).1.ends_with("the end of the time for all checks"), "{checked:?}");
}

#[test]
fn a_pack_that_can_never_hold_is_refused() {
    let x = || Claim::exists("x");

    let same = Pack::at_least(2, [x(), Claim::exists("./x").named("again")]).unwrap_err();
    assert_eq!(same, InvalidPack::Same { at_least: 2, claims: 2, different: 1 });
    assert!(same.to_string().contains("duplicates count once"), "{same}");
    assert!(Pack::at_least(2, [x(), Claim::file("x")]).is_ok(), "they say something different");
    assert_eq!(Pack::all([]).check(), Err(InvalidPack::Empty));
    assert_eq!(Pack::all([warns(x())]).check(), Err(InvalidPack::OnlyWarns));
    assert_eq!(Pack::all([warns(x()), Claim::exists("y")]).check(), Ok(()));
    let warned = Pack::at_least(1, [warns(x())]).unwrap_err();
    assert_eq!(warned, InvalidPack::AtLeast { at_least: 1, claims: 0 });
}

#[tokio::test]
async fn a_file_counts_once_by_relative_and_absolute_path() {
    let outer = folder();
    let base = outer.path().join("base");
    symlink(&base, outer.path().join("link")).unwrap();
    for root in [base.clone(), outer.path().join("link")] {
        let site = Site::beneath(&base).allowing(&root);
        let other = root.join("a.txt").to_str().unwrap().to_owned();
        let pack = Pack::at_least(2, [Claim::file("a.txt"), Claim::file(other), Claim::file("gone")]);

        let committed = Verifier::new().commit(&pack.unwrap(), &site).await;

        assert_eq!((committed.summary().ok, committed.verdict()), (2, Verdict::Failed), "{committed:?}");
    }
}

#[tokio::test]
async fn what_is_expected_of_something_sensitive_counts_each() {
    let outer = folder();
    let sensitive = |claim: Claim| claim.on_terms(Terms { sensitive: true, ..Terms::default() });
    let sized = |size: &str| sensitive(Claim::exists("a.txt").expecting(json!({ "size": size })));
    let pack = Pack::at_least(2, [sized("> 0"), sized("> 1"), Claim::exists("gone")]).unwrap();

    let committed = Verifier::new().commit(&pack, &site(&outer)).await;

    assert_eq!(committed.verdict_at(Occasion::Commit), Verdict::Ok, "{committed:?}");
}
