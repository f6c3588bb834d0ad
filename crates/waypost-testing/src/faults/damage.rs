//! Flips every bit of chosen files and truncates them at every length, each on a fresh copy, and counts the
//! outcomes.
//!
//! A store promises to never return a wrong value because of damage. The store returns the right value,
//! reports the damage with an older sound value, or refuses. [`damage_disk`] tests a store on a [`SimDisk`];
//! [`damage_folder`] tests a store that needs a real folder. The check classifies each answer; a panic of the
//! check counts as wrong.

use std::fmt;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::faults::disk::SimDisk;

/// A damage to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// A flipped bit.
    Flip {
        /// The damaged file.
        file: PathBuf,
        /// The byte, counted from 0.
        byte: usize,
        /// The bit, 0 for the lowest.
        bit: u8,
    },
    /// A truncated file.
    Cut {
        /// The damaged file.
        file: PathBuf,
        /// Remaining bytes.
        len: usize,
    },
}

impl Damage {
    /// Returns the damaged file.
    #[must_use]
    pub fn file(&self) -> &Path {
        match self {
            Self::Flip { file, .. } | Self::Cut { file, .. } => file,
        }
    }

    /// Applies the damage to the bytes of the file.
    ///
    /// # Panics
    /// If the file is shorter than the file for which the damage was listed.
    pub fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Flip { byte, bit, .. } => bytes[*byte] ^= 1 << bit,
            Self::Cut { len, .. } => {
                assert!(*len < bytes.len(), "a cut leaves less than there was");
                bytes.truncate(*len);
            }
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flip { file, byte, bit } => {
                write!(f, "`{}`: bit {bit} of byte {byte} flipped", file.display())
            }
            Self::Cut { file, len } => write!(f, "`{}`: cut after {len} bytes", file.display()),
        }
    }
}

/// Lists every damage of files with these lengths: each bit of each byte, and each shorter length.
pub fn every_damage(files: Vec<(PathBuf, usize)>) -> impl Iterator<Item = Damage> {
    files.into_iter().flat_map(|(file, len)| {
        let flipped = file.clone();
        let flips = (0..len).flat_map(move |byte| {
            let file = flipped.clone();
            (0..8).map(move |bit| Damage::Flip { file: file.clone(), byte, bit })
        });
        flips.chain((0..len).map(move |len| Damage::Cut { file: file.clone(), len }))
    })
}

/// The reaction of a store to a damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The right value: the damage was irrelevant or repaired.
    Right,
    /// An older sound value, with a report of the damage.
    Older,
    /// An error.
    Refused,
    /// A wrong value, or an older value without a report; the text is the finding.
    Wrong(String),
}

/// The number of damages per outcome, none of them wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// [`Outcome::Right`].
    pub right: u64,
    /// [`Outcome::Older`].
    pub older: u64,
    /// [`Outcome::Refused`].
    pub refused: u64,
}

/// The first damage with a wrong outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstWrong {
    /// The damage.
    pub damage: Damage,
    /// The finding of the check.
    pub found: String,
    /// The outcomes of the damages before.
    pub before: Tally,
}

impl fmt::Display for FirstWrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.damage, self.found)
    }
}

/// The share of damages to apply, for short tests: every n-th. An odd number covers every bit position over
/// time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneIn(pub usize);

/// Applies every damage.
pub const ALL: OneIn = OneIn(1);

/// Applies each damage to the chosen files on a copy of the disk, and checks the copy.
///
/// # Errors
/// The first damage with a wrong outcome.
///
/// # Panics
/// If no file is chosen, or if the disk has unsynced changes; see [`SimDisk::settle`].
pub fn damage_disk(
    disk: &SimDisk,
    share: OneIn,
    chosen: impl Fn(&Path) -> bool,
    mut check: impl FnMut(&SimDisk) -> Outcome,
) -> Result<Tally, Box<FirstWrong>> {
    let files =
        disk.files().into_iter().filter(|(path, _)| chosen(path)).map(|(path, bytes)| (path, bytes.len()));
    each(files.collect(), share, |damage| {
        let copy = disk.fork();
        copy.spoil(damage.file(), |bytes| damage.apply(bytes)).expect("the file is on the disk");
        check(&copy)
    })
}

/// Applies each damage to the chosen files in a copy of the folder, and checks the copy. Copies are in memory
/// if the system has a memory file system. Paths are relative to the folder.
///
/// # Errors
/// The first damage with a wrong outcome, or the I/O error of a copy.
///
/// # Panics
/// If no file is chosen.
pub fn damage_folder(
    folder: &Path,
    share: OneIn,
    chosen: impl Fn(&Path) -> bool,
    mut check: impl FnMut(&Path) -> Outcome,
) -> io::Result<Result<Tally, Box<FirstWrong>>> {
    let mut image = Vec::new();
    read_folder(folder, Path::new(""), &mut image)?;
    let lengths = image.iter().filter_map(|(path, bytes)| {
        let len = bytes.as_ref()?.len();
        chosen(path).then(|| (path.clone(), len))
    });
    let mut failed = None;
    let result = each(lengths.collect(), share, |damage| match damaged_copy(&image, damage) {
        Ok(copy) => check(copy.path()),
        Err(error) => {
            let found = format!("cannot be tried: {error}");
            failed.get_or_insert(error);
            Outcome::Wrong(found)
        }
    });
    failed.map_or(Ok(result), Err)
}

fn each(
    files: Vec<(PathBuf, usize)>,
    share: OneIn,
    mut outcome: impl FnMut(&Damage) -> Outcome,
) -> Result<Tally, Box<FirstWrong>> {
    assert!(!files.is_empty(), "no file was chosen, so nothing would be shown");
    let mut tally = Tally::default();
    for damage in every_damage(files).step_by(share.0) {
        let outcome = catch_unwind(AssertUnwindSafe(|| outcome(&damage)));
        match outcome.unwrap_or_else(|_| Outcome::Wrong("it panicked".to_owned())) {
            Outcome::Right => tally.right += 1,
            Outcome::Older => tally.older += 1,
            Outcome::Refused => tally.refused += 1,
            Outcome::Wrong(found) => return Err(Box::new(FirstWrong { damage, found, before: tally })),
        }
    }
    Ok(tally)
}

/// Folders (without bytes) and files, by path below the read folder.
type Image = Vec<(PathBuf, Option<Vec<u8>>)>;

/// Reads a folder recursively, parents first. Only files and folders are included.
fn read_folder(root: &Path, beneath: &Path, image: &mut Image) -> io::Result<()> {
    for entry in fs::read_dir(root.join(beneath))? {
        let entry = entry?;
        let path = beneath.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            image.push((path.clone(), None));
            read_folder(root, &path, image)?;
        } else if kind.is_file() {
            image.push((path.clone(), Some(fs::read(root.join(&path))?)));
        }
    }
    // Directory listings are unordered, but the first wrong outcome must be reproducible.
    image.sort();
    Ok(())
}

fn damaged_copy(image: &Image, damage: &Damage) -> io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let copy = if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
    for (path, bytes) in image {
        match bytes {
            None => fs::create_dir(copy.path().join(path))?,
            Some(bytes) if path == damage.file() => {
                let mut bytes = bytes.clone();
                damage.apply(&mut bytes);
                fs::write(copy.path().join(path), bytes)?;
            }
            Some(bytes) => fs::write(copy.path().join(path), bytes)?,
        }
    }
    Ok(copy)
}
