//! Flips every bit of chosen files and cuts them at every length, each on a fresh copy, and counts what comes of it.
//!
//! A store promises that damage never makes it return a wrong value: it returns the right one, or an older sound one
//! and says so, or it refuses. [`damage_disk`] puts a store on a [`SimDisk`] to that proof, [`damage_folder`] one that
//! needs a real folder. Which of the answers a check got is for the check to say; a check that panics has found
//! a store that does.

use std::fmt;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::disk::SimDisk;

/// One damage to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// One bit is the other way.
    Flip {
        /// The file.
        file: PathBuf,
        /// The byte, counted from 0.
        byte: usize,
        /// The bit, 0 for the lowest.
        bit: u8,
    },
    /// The file ends early.
    Cut {
        /// The file.
        file: PathBuf,
        /// How many bytes are left.
        len: usize,
    },
}

impl Damage {
    /// The damaged file.
    #[must_use]
    pub fn file(&self) -> &Path {
        match self {
            Self::Flip { file, .. } | Self::Cut { file, .. } => file,
        }
    }

    /// Does the damage to the bytes of the file.
    ///
    /// # Panics
    /// If the file is shorter than the one that the damage was made for.
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

/// Lists every damage to files of those lengths: each bit of each byte, and each shorter length.
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

/// What a store made of a damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It returned the right value: nothing that mattered was hit, or it was healed.
    Right,
    /// It returned an older sound value and reported the damage.
    Older,
    /// It returned an error.
    Refused,
    /// It returned a wrong value, or an older one without a word; with what was found.
    Wrong(String),
}

/// How many damages had which outcome. None was wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// [`Outcome::Right`].
    pub right: u64,
    /// [`Outcome::Older`].
    pub older: u64,
    /// [`Outcome::Refused`].
    pub refused: u64,
}

/// The first damage that a store did not stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstWrong {
    /// The damage.
    pub damage: Damage,
    /// What the check found.
    pub found: String,
    /// What came of the damages before.
    pub before: Tally,
}

impl fmt::Display for FirstWrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.damage, self.found)
    }
}

/// Which damages are done: all of them, or one in so many, which a short test can afford. An odd number reaches every
/// bit of a byte in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneIn(pub usize);

/// Every damage is done.
pub const ALL: OneIn = OneIn(1);

/// Does each damage to the chosen files of a disk, each time to a copy of its own, and has it checked.
///
/// # Errors
/// The first damage with a wrong outcome.
///
/// # Panics
/// If no file is chosen, or if the disk has changes that are not synced: see [`SimDisk::settle`].
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

/// Does each damage to the chosen files beneath a folder, each time in a copy of it in a fresh folder (in memory,
/// where the system has such a place), and has it checked. Paths are relative to the folder.
///
/// # Errors
/// The first damage with a wrong outcome; or what stood against the copying.
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

/// A folder (without bytes) or a file, by its path beneath the folder that was read.
type Image = Vec<(PathBuf, Option<Vec<u8>>)>;

/// Reads folders before what is in them. Anything but files and folders is left out.
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
    // The order of a listing is chance, and the first wrong outcome is to be the same each time.
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
