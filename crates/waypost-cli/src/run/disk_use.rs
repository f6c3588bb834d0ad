//! The disk use of a run: its records, and the files of its folder, such as logs, events and the report.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use waypost::store::{RunSummary, Store};

use crate::store_location::keeps_records_in_folders;

/// Returns the bytes of a run's records, logs and other files, in the store or in the run's folder.
pub(crate) fn bytes_of(store: &dyn Store, run: &RunSummary) -> u64 {
    let folder = store.folder(&run.run).or_else(|| store.blobs().log_folder(&run.run));
    let folder = folder.map_or(0, |folder| bytes_in(&folder, &mut HashSet::new()));
    if keeps_records_in_folders(store) { folder } else { folder + run.bytes + run.blob_bytes }
}

/// Returns the bytes of all files beneath a folder, each inode once. Unreadable files are ignored, as the
/// number is only informative.
fn bytes_in(folder: &Path, seen: &mut HashSet<(u64, u64)>) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path(), seen),
        Ok(metadata) if seen.insert((metadata.dev(), metadata.ino())) => metadata.len(),
        _ => 0,
    });
    bytes.sum()
}
