//! The user's list of stores for `list --everywhere`, newest last: a line is `ADDRESS<TAB>FOLDER`, where a command was called
//! that wrote to the store.
//!
//! Best effort: a failed write of the list is ignored, and addresses of deleted stores are dropped. The search for a
//! store reads the list last, for stores used from the current folder. Stores in the system's temporary folder are left out.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use waypost::store::Store;

use crate::atomic_file::open_regular;
use crate::store_location::StoreUrl;

/// Most stores that are remembered: a listing opens each of them.
const STORES_MAX: usize = 200;
/// Longest file that is taken for such a list: every address and folder may be as long as a path.
const FILE_BYTES_MAX: u64 = (STORES_MAX * 8400) as u64;

/// Remembers a store that is written to.
pub(crate) fn remember(store: &dyn Store) {
    let Some((file, address)) = file().zip(lasting_address(store)) else { return };
    let here = std::env::current_dir().ok().and_then(|here| here.to_str().map(str::to_owned));
    let here = here.filter(|here| !here.contains(['\n', '\t'])).unwrap_or_default();
    let line = format!("{address}\t{here}");
    let mut lines = read(&file).unwrap_or_default();
    if lines.contains(&line) {
        return;
    }
    lines.retain(|known| is_there(address_of(known)));
    lines.push(line);
    let older = lines.len().saturating_sub(STORES_MAX);
    // A concurrent writer may win; the lost entry is added at the next use.
    let _ = write(&file, &lines[older..]);
}

/// Returns the addresses of the stores that are remembered and there, newest first.
pub(crate) fn remembered() -> Vec<String> {
    let mut addresses: Vec<String> = Vec::new();
    for line in newest_first() {
        let address = address_of(&line).to_owned();
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// Returns the address of the newest store that was used from a folder, or that is below it.
pub(crate) fn used_from(folder: &Path) -> Option<String> {
    let is_it = |line: &&String| {
        let (address, used) = line.split_once('\t').unwrap_or((line, ""));
        Path::new(used) == folder || is_below(address, folder)
    };
    newest_first().iter().find(is_it).map(|line| address_of(line).to_owned())
}

fn newest_first() -> Vec<String> {
    let mut lines = file().and_then(|file| read(&file).ok()).unwrap_or_default();
    lines.retain(|line| is_there(address_of(line)));
    lines.reverse();
    lines
}

fn address_of(line: &str) -> &str {
    line.split('\t').next().unwrap_or_default()
}

/// Returns the address by which a store is found from anywhere; none if it does not last.
pub(crate) fn address(store: &dyn Store) -> Option<String> {
    let url = StoreUrl::parse(&store.to_string()).ok()?;
    url.with_path(&url.path()?.canonicalize().ok()?)
}

fn lasting_address(store: &dyn Store) -> Option<String> {
    let address = address(store).filter(|address| !address.contains(['\n', '\t']))?;
    let temporary = std::env::temp_dir().canonicalize().ok();
    let is_temporary = temporary.is_some_and(|folder| is_below(&address, &folder));
    (!is_temporary).then_some(address)
}

fn is_below(address: &str, folder: &Path) -> bool {
    let url = StoreUrl::parse(address).ok();
    url.as_ref().and_then(StoreUrl::path).is_some_and(|path| path.starts_with(folder))
}

fn is_there(address: &str) -> bool {
    let url = StoreUrl::parse(address).ok();
    url.as_ref().and_then(StoreUrl::path).is_some_and(Path::exists)
}

/// Returns the file; none without a home.
///
/// # Source
/// XDG Base Directory Specification 0.8: a path that is not absolute is to be ignored.
fn file() -> Option<PathBuf> {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = path("XDG_STATE_HOME").or_else(|| path("HOME").map(|home| home.join(".local/state")))?;
    Some(base.join("waypost/stores"))
}

fn read(file: &Path) -> io::Result<Vec<String>> {
    let mut text = String::new();
    open_regular(file)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn write(file: &Path, addresses: &[String]) -> io::Result<()> {
    let folder = file.parent().ok_or(io::ErrorKind::NotFound)?;
    fs::DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    // Whole or not at all, and of one process only.
    let made = folder.join(format!("stores.{}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let text = addresses.join("\n") + "\n";
    let written = options.open(&made).and_then(|mut made| made.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(&made, file)).inspect_err(|_| drop(fs::remove_file(&made)))
}
