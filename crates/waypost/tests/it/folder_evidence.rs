//! Folders and patterns as evidence: one digest of the whole tree, and the files that are not read again.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use waypost::evidence::{Sha256Probe, Site, find_all};
use waypost::record::{Claim, Pack, Terms, Verdict};
use waypost::{Digest, Verifier};

/// Makes a folder `out` with two files, one of them in a subfolder, an empty folder, a link and a hidden file.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::create_dir_all(out.join("sub")).unwrap();
    fs::create_dir(out.join("empty")).unwrap();
    fs::write(out.join("a.csv"), "alpha").unwrap();
    fs::write(out.join("sub/b.csv"), "beta").unwrap();
    fs::write(out.join(".hidden"), "").unwrap();
    symlink("a.csv", out.join("link")).unwrap();
    folder
}

async fn hashed(subject: &str, base: &Path) -> Claim {
    let pack = Pack::all([Claim::unchanged(subject)]);
    Verifier::new().commit(&pack, &Site::beneath(base)).await.claims.remove(0)
}

async fn digest(subject: &str, base: &Path) -> Value {
    let claim = hashed(subject, base).await;
    assert_eq!(claim.verdict, Verdict::Ok, "{claim:?}");
    claim.expect
}

#[tokio::test]
async fn a_folder_has_the_digest_that_is_documented() {
    let folder = folder();
    let leaf = |kind: &str, path: &str, holds: &[u8]| {
        Digest::of_parts([b"waypost tree 1".as_slice(), kind.as_bytes(), path.as_bytes(), holds])
    };
    let of = |text: &str| Digest::of(text.as_bytes()).as_bytes().to_vec();
    let leaves = [
        leaf("f", ".hidden", &of("")),
        leaf("f", "a.csv", &of("alpha")),
        leaf("d", "empty", b""),
        leaf("l", "link", &of("a.csv")),
        leaf("d", "sub", b""),
        leaf("f", "sub/b.csv", &of("beta")),
    ];

    assert_eq!(digest("out", folder.path()).await, format!("tree:{}", Digest::merkle(&leaves)));
    assert_eq!(digest("out/*.csv", folder.path()).await, format!("tree:{}", Digest::merkle(&leaves[1..2])));
    let seen: Vec<Digest> = [1, 2, 3, 4, 5].map(|place| leaves[place]).to_vec();
    assert_eq!(digest("out/*", folder.path()).await, format!("tree:{}", Digest::merkle(&seen)));
}

#[tokio::test]
async fn whatever_changes_in_a_folder_changes_its_digest() {
    let folder = folder();
    let out = folder.path().join("out");
    let before = digest("out", folder.path()).await;
    let changes: Vec<Box<dyn Fn()>> = vec![
        Box::new(|| fs::write(out.join("a.csv"), "alphA").unwrap()),
        Box::new(|| fs::rename(out.join("sub/b.csv"), out.join("b.csv")).unwrap()),
        Box::new(|| fs::create_dir(out.join("new")).unwrap()),
        Box::new(|| fs::remove_dir(out.join("new")).unwrap()),
        Box::new(|| fs::remove_file(out.join("link")).unwrap()),
        Box::new(|| symlink("b.csv", out.join("link")).unwrap()),
        Box::new(|| fs::remove_file(out.join(".hidden")).unwrap()),
        // The same bytes in total, split elsewhere.
        Box::new(|| {
            fs::rename(out.join("a.csv"), out.join("a")).unwrap();
            fs::write(out.join("a"), ".csvalphA").unwrap();
        }),
    ];

    let mut seen = vec![before];
    for change in changes {
        change();
        let now = digest("out", folder.path()).await;
        assert_ne!(seen.last(), Some(&now));
        seen.push(now);
    }
    let again = digest("out", folder.path()).await;
    assert_eq!(seen.last(), Some(&again), "it is the same each time");
}

#[tokio::test]
async fn no_file_has_the_digest_of_a_folder() {
    let folder = folder();
    let tree = digest("out", folder.path()).await;
    let bare = tree.as_str().unwrap().strip_prefix("tree:").unwrap();
    let verdict = async |subject: &str, expect: &str| {
        let claim = Claim::new("file_sha256", subject).expecting(expect);
        let pack = Pack::all([claim]);
        Verifier::new().verify(&pack, &Site::beneath(folder.path())).await.claims.remove(0).verdict
    };

    assert_eq!(verdict("out", &tree.as_str().unwrap().to_uppercase()).await, Verdict::Ok);
    assert_eq!(verdict("out", bare).await, Verdict::Failed);
    assert_eq!(verdict("out", "tree:abc").await, Verdict::Failed);
    let alpha = Digest::of(b"alpha");
    assert_eq!(verdict("out/a.csv", &format!("tree:{alpha}")).await, Verdict::Failed);
}

#[tokio::test]
async fn an_unhashable_file_is_unknown_and_a_missing_has_no_digest() {
    let folder = folder();
    let verdict = async |subject: &str| hashed(subject, folder.path()).await.verdict;
    assert_eq!(verdict("none").await, Verdict::Failed);
    assert_eq!(verdict("none/*").await, Verdict::Failed);
    assert_eq!(verdict("out/*.txt").await, Verdict::Failed);
    assert_eq!(verdict("../out/*").await, Verdict::Failed);
    assert_eq!(verdict("out/*/../*").await, Verdict::Failed);
    symlink(folder.path(), folder.path().join("out/up")).unwrap();
    assert_eq!(verdict("out").await, Verdict::Ok, "a link is what it says, and is not followed");
    assert_eq!(verdict("out/up/*").await, Verdict::Failed);

    let pipe = folder.path().join("out/sub/pipe");
    assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());

    let claim = hashed("out", folder.path()).await;
    assert_eq!(claim.verdict, Verdict::Unknown, "{claim:?}");
    assert!(claim.error.unwrap().contains("`sub/pipe` in the folder"));
}

#[tokio::test]
async fn a_pattern_names_what_is_called_so() {
    let folder = folder();
    let out = folder.path().join("out");
    fs::write(out.join("ä.csv"), "").unwrap();
    fs::write(out.join("sub/.c.csv"), "").unwrap();
    let site = Site::beneath(folder.path());
    let cases: [(&str, &[&str]); 12] = [
        ("out/*.csv", &["out/a.csv", "out/ä.csv"]),
        ("out/?.csv", &["out/a.csv", "out/ä.csv"]),
        ("out/a*", &["out/a.csv"]),
        ("out/*a*v", &["out/a.csv"]),
        ("out/*/b.csv", &["out/sub/b.csv"]),
        ("out/**/*.csv", &["out/a.csv", "out/sub/b.csv", "out/ä.csv"]),
        ("**/b.*", &["out/sub/b.csv"]),
        ("out/.*", &["out/.hidden"]),
        ("out/sub/**", &["out/sub/b.csv"]),
        ("./out//s?b/*", &["out/sub/b.csv"]),
        ("out/*.txt", &[]),
        ("gone/*", &[]),
    ];

    for (pattern, wanted) in cases {
        assert_eq!(find_all(&site, pattern).await.unwrap(), wanted, "{pattern}");
    }
}

#[tokio::test]
async fn a_file_trusted_by_its_times_is_not_read_until_a_change() {
    let folder = folder();
    let site = Site::beneath(folder.path());
    let probe = Sha256Probe::new();
    let verifier = Verifier::new().with_probe(Arc::new(probe.clone()));
    let fast = || Terms { fast: true, ..Terms::default() };
    for (subject, files, written) in [("out", 3, "out/sub/b.csv"), ("out/a.csv", 1, "out/a.csv")] {
        let before = probe.files_read();
        let pack = Pack::all([Claim::unchanged(subject).on_terms(fast())]);
        let pinned = verifier.commit(&pack, &site).await;
        assert!(pinned.claims[0].stamp.is_some(), "{pinned:?}");
        assert_eq!(probe.files_read() - before, files);

        // In the form of a record, and for a restarted program.
        let kept: Pack = serde_json::from_value(serde_json::to_value(&pinned).unwrap()).unwrap();
        assert_eq!(verifier.verify(&kept, &site).await.verdict(), Verdict::Ok);
        assert_eq!(probe.files_read() - before, files, "{subject} is not read again");

        let path = folder.path().join(written);
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text).unwrap();
        assert_eq!(verifier.verify(&kept, &site).await.verdict(), Verdict::Ok, "it is the same");
        assert_eq!(probe.files_read() - before, 2 * files);
        fs::write(&path, [text.as_slice(), b"!"].concat()).unwrap();
        assert_eq!(verifier.verify(&kept, &site).await.verdict(), Verdict::Failed);
        fs::write(&path, text).unwrap();
    }

    let plain = verifier.commit(&Pack::all([Claim::unchanged("out")]), &site).await;
    assert_eq!(plain.claims[0].stamp, None);
}

#[tokio::test]
async fn of_files_trusted_by_times_only_changed_ones_are_read() {
    const FILES: usize = 1_200;
    let folder = tempfile::tempdir().unwrap();
    let path = |file: usize| folder.path().join(file.to_string());
    for file in 0..FILES {
        fs::write(path(file), file.to_string()).unwrap();
    }
    // Waits until a further change would show in the modification times.
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    let site = Site::beneath(folder.path()).on_host("here");
    let probe = Sha256Probe::new();
    let verifier = Verifier::new().with_probe(Arc::new(probe.clone()));
    let terms = || Terms { fast: true, ..Terms::default() };
    let claims = (0..FILES).map(|file| Claim::unchanged(file.to_string()).on_terms(terms()));
    let pinned = verifier.commit(&Pack::all(claims), &site).await.claims;
    assert!(pinned.iter().all(|claim| claim.stamp.is_some() && claim.verdict == Verdict::Ok));
    let mut asked: Vec<(Claim, Site)> = pinned.into_iter().map(|claim| (claim, site.clone())).collect();
    asked[5].0.terms.not = true;
    asked[6].0.host = Some("elsewhere".to_owned());
    fs::write(path(600), "600").unwrap();
    fs::write(path(700), "other").unwrap();
    fs::remove_file(path(800)).unwrap();
    fs::remove_file(path(1_100)).unwrap();
    symlink("900", path(1_100)).unwrap();

    let before = probe.files_read();
    let checked = verifier.verify_all(&asked).await;

    let otherwise: Vec<_> = (0..FILES).filter(|file| checked[*file].verdict != Verdict::Ok).collect();
    assert_eq!(otherwise, [5, 6, 700, 800, 1_100]);
    assert_eq!(checked[6].verdict, Verdict::Unknown);
    assert!(checked.iter().zip(&asked).all(|(claim, (was, _))| claim.subject == was.subject));
    assert_eq!(probe.files_read() - before, 3, "600, 700, and what 1100 leads to");
}

#[tokio::test]
async fn a_mode_is_compared_with_the_rights_of_a_file() {
    let folder = folder();
    let path = folder.path().join("out/a.csv");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let verdict = async |mode: Value| {
        let claim = Claim::exists("out/a.csv").expecting(json!({ "mode": mode }));
        let pack = Pack::all([claim]);
        Verifier::new().verify(&pack, &Site::beneath(folder.path())).await.claims.remove(0)
    };

    for right in [json!("640"), json!("0640"), json!(["600", "640"])] {
        assert_eq!(verdict(right).await.verdict, Verdict::Ok);
    }
    let other = verdict(json!("0600")).await;
    assert_eq!((other.verdict, &other.found["mode"]), (Verdict::Failed, &json!("0640")));
    for wrong in [json!(640), json!("rw-"), json!("08"), json!([]), json!(null), json!("+64")] {
        let found = verdict(wrong).await;
        assert!(found.verdict == Verdict::Failed && found.found.is_null(), "{found:?}");
    }
}
