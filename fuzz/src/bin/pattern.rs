//! The subject of a claim about files, looked up in a folder.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use waypost::evidence::{Site, Verifier, is_pattern, literal_path, named_by};
use waypost::record::{Claim, Pack};

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for name in ["a.txt", "out/b[1].csv", "out/ä*.csv", "out/deep/.hidden", "out/deep/deeper/c"] {
        let path: PathBuf = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("it is beneath the folder")).expect("a folder can be made");
        fs::write(path, name).expect("a file can be written");
    }
    std::os::unix::fs::symlink("..", folder.path().join("out/up")).expect("a link can be made");
    folder
});
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime can be made")
});

fuzz_target!(|subject: &str| {
    let literal = literal_path(subject);
    assert!(!is_pattern(&literal));
    assert_eq!(named_by(&literal), subject);
    let site = Site::beneath(FOLDER.path());
    drop(RUNTIME.block_on(Verifier::new().commit(&Pack::all([Claim::unchanged(subject)]), &site)));
});
