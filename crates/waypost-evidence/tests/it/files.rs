//! Files: modes, JSON in them, times, and patterns.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use waypost::evidence::{ARTIFACT_EXISTS, FILE_SHA256};
use waypost_evidence::check_path;

use crate::{Case, FAILED, OK, UNKNOWN};

/// Files, what is expected of them, and what comes of it.
pub(crate) fn cases() -> Vec<Case> {
    let file = |path: &str, expect: Value, verdict| (ARTIFACT_EXISTS, path.to_owned(), expect, verdict);
    let all = |expect: Value, verdict| (ARTIFACT_EXISTS, "many/*.csv".to_owned(), expect, verdict);
    let sha = |path: &str, expect: Value, verdict| (FILE_SHA256, path.to_owned(), expect, verdict);
    vec![
        file("a.json", json!({ "mode": "0640" }), OK),
        file("a.json", json!({ "mode": "640", "type": "file" }), OK),
        file("a.json", json!({ "mode": ["0600", "0640"] }), OK),
        file("a.json", json!({ "mode": "0600" }), FAILED),
        file("a.json", json!({ "mode": 640 }), FAILED),
        file("a.json", json!({ "mode": "u+r" }), FAILED),
        file("a.json", json!({ "json": { "$.n": 3 } }), OK),
        file("a.json", json!({ "json": { "$.n": "> 2", "$.list[1].name": "b" } }), OK),
        file("a.json", json!({ "json": { "$.n": 3, "$.list[1].name": "a" } }), FAILED),
        file("a.json", json!({ "json": { "$.none": null } }), OK),
        file("a.json", json!({ "json": { "$.missing": null } }), FAILED),
        file("a.json", json!({ "json": { "n": 3 } }), FAILED),
        file("a.json", json!({ "json": { "$.n": [] } }), FAILED),
        file("a.json", json!({ "json": {} }), FAILED),
        file("a.json", json!({ "json": 3 }), FAILED),
        file("a.txt", json!({ "json": { "$.n": 3 } }), FAILED),
        file("a.json", json!({ "json": { "$.n": 3 }, "contains": "none" }), OK),
        file("a.txt", json!({ "matches": "" }), FAILED),
        file("new.txt", json!({ "newer_than": "old.txt" }), OK),
        file("old.txt", json!({ "newer_than": "new.txt" }), FAILED),
        file("new.txt", json!({ "newer_than": "new.txt" }), OK),
        file("new.txt", json!({ "newer_than": ["old.txt", "2020-01-01T00:00:00Z"] }), OK),
        file("new.txt", json!({ "newer_than": ["old.txt", "2120-01-01T00:00:00Z"] }), FAILED),
        file("old.txt", json!({ "newer_than": "2020-01-01T00:00:00+02:00" }), FAILED),
        file("new.txt", json!({ "newer_than": "gone.txt" }), FAILED),
        file("new.txt", json!({ "newer_than": "../old.txt" }), FAILED),
        file("new.txt", json!({ "newer_than": [] }), FAILED),
        file("new.txt", json!({ "newer_than": "" }), FAILED),
        file("new.txt", json!({ "newer_than": 5 }), FAILED),
        file("gone.txt", json!({ "newer_than": "old.txt" }), FAILED),
        all(json!(null), OK),
        all(json!({ "count": 3 }), OK),
        all(json!({ "count": "> 3" }), FAILED),
        all(json!({ "count": [2, 3], "size": "> 0", "type": "file" }), OK),
        all(json!({ "contains": "id" }), OK),
        all(json!({ "contains": "two" }), FAILED),
        all(json!({ "size": "> 4" }), FAILED),
        all(json!({ "newer_than": "old.txt" }), OK),
        all(json!({ "count": null }), FAILED),
        all(json!({ "count": ">= 0" }), FAILED),
        all(json!({ "count": "> many" }), FAILED),
        all(json!({ "colour": "red" }), UNKNOWN),
        all(json!({ "absent": true }), FAILED),
        all(json!("all"), FAILED),
        file("many/*.txt", json!(null), FAILED),
        file("many/*.txt", json!({ "absent": true }), OK),
        file("many/*.txt", json!({ "absent": false }), FAILED),
        file("many/*.txt", json!({ "count": 0 }), OK),
        file("gone/**", json!(null), FAILED),
        file("../*", json!(null), FAILED),
        file("/etc/*", json!({ "absent": true }), FAILED),
        file("a.json", json!({ "count": 1 }), UNKNOWN),
        file("odd/*", json!({ "count": 3 }), OK),
        file("odd/*", json!({ "count": "> 3" }), FAILED),
        file("odd/lost", json!(null), FAILED),
        file("odd/l*", json!(null), FAILED),
        file("odd/l*", json!({ "type": "symlink" }), OK),
        file("odd/*", json!({ "type": "symlink", "count": 4 }), OK),
        file("odd/p*", json!({ "type": "symlink" }), FAILED),
        file("odd/p*", json!({ "type": "symlink", "count": 0 }), OK),
        file("new.txt", json!({ "newer_than": "many/*.csv" }), FAILED),
        file("new.txt", json!({ "newer_than": "odd/pipe" }), FAILED),
        file("odd/l*", json!({ "absent": true }), OK),
        file("odd/p*", json!(null), FAILED),
        file("odd/[*]", json!({ "contains": "star" }), OK),
        file("odd/[?]", json!(null), FAILED),
        sha("folder", json!(null), FAILED),
        sha("folder", json!("0".repeat(64)), FAILED),
        sha("folder", json!(format!("tree:{}", "0".repeat(64))), FAILED),
        sha("folder", json!("tree:"), FAILED),
        sha("many/*.txt", json!("0".repeat(64)), FAILED),
        sha("/dev/null", json!("0".repeat(64)), FAILED),
    ]
}

pub(crate) fn world(folder: &Path) {
    fs::set_permissions(folder.join("a.json"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::create_dir(folder.join("many")).unwrap();
    for (name, text) in [("a", "id,1"), ("b", "id,two"), ("c", "id,three")] {
        fs::write(folder.join("many").join(name).with_extension("csv"), text).unwrap();
    }
    // A folder, a file, and a link to one; what is neither.
    let odd = |name: &str| folder.join("odd").join(name);
    fs::create_dir_all(odd("folder")).unwrap();
    fs::write(odd("*"), "star").unwrap();
    symlink("*", odd("within")).unwrap();
    symlink("nowhere", odd("lost")).unwrap();
    symlink("around", odd("around")).unwrap();
    symlink("/etc/passwd", odd("out")).unwrap();
    assert!(Command::new("mkfifo").arg(odd("pipe")).status().unwrap().success());
    fs::write(folder.join("new.txt"), "").unwrap();
    let old = fs::File::create(folder.join("old.txt")).unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
}

#[test]
fn the_path_of_a_claim_names_one_value() {
    for path in ["$", "$.meta.count", "$.items[0].name", "$.items[-1]", "$['a.b']"] {
        assert_eq!(check_path(path), Ok(()), "{path}");
    }
    for path in ["", "meta", "$.", "$.a b", "$.items[*].name", "$.meta.*"] {
        let why = check_path(path).expect_err(path);
        assert!(why.starts_with(&format!("`{path}` is not a path, such as")), "{why}");
    }
}
