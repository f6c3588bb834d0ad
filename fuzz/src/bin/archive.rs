//! An archive for `waypost import`. The input is not yet compressed, because the checksum of zstd would refuse most
//! changes.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

#[path = "."]
mod commands {
    #[expect(dead_code, reason = "the command also writes archives")]
    #[path = "../../../crates/waypost-cli/src/commands/archive/contents.rs"]
    mod contents;

    /// Reads an archive, and drops its parts.
    pub(crate) fn read(path: &std::path::Path) {
        drop(contents::checkpoint_in(path));
    }
}

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder can be made"));

fuzz_target!(|bytes: &[u8]| {
    let path = FOLDER.path().join("archive");
    fs::write(&path, zstd::encode_all(bytes, 1).expect("memory can be written"))
        .expect("a file can be written");
    commands::read(&path);
});
