//! Superseded claims: of several claims about a subject, only the newest is checked.
//!
//! A legitimate rewrite by a later step must not fail an earlier step. A step with any claim about a file may
//! have written this file. Claims about files of any kind therefore supersede each other by file:
//!
//! ```text
//!   an older claim about          is bound to the newest claim about
//!   a file                        that file
//!   the bytes of a folder         that folder, or anything in it
//!   what a pattern names          the same pattern, or anything that it names
//!   anything in a folder          the bytes of that folder, or what a pattern claims that names it
//!   rows of a database            the same rows, or the bytes of its file
//!   anything else                 the same subject, by the same kind
//! ```
//!
//! Rows are the same if table and condition, or the query, are equal. Other rows of the database may change
//! at any time.

use std::collections::HashMap;

use serde_json::Value;

use crate::record::Claim;

use super::pattern::{is_pattern, reaches, resolved};
use super::{ARTIFACT_EXISTS, FILE_SHA256};

/// The kind of claims about values in files; defined in `waypost-evidence`.
const JSON_VALUE: &str = "json_value";
/// The kind of claims about database rows; defined in `waypost-evidence`.
const DB_ROW: &str = "db_row";
/// The keys of an expectation that select the rows.
const ASKED: [&str; 3] = ["table", "where", "query"];

/// The subject of a claim, as a key: newer claims supersede older claims by this key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClaimKey {
    /// The normalized path, or the subject.
    name: String,
    by: SubjectKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum SubjectKind {
    /// The existence of a file, or a value in it.
    File,
    /// The bytes of a file or of a folder's files; for a pattern, any claim about the matching files.
    Bytes,
    Rows(String),
    Kind(String),
}

impl ClaimKey {
    pub(crate) fn of(claim: &Claim) -> Self {
        let name = claim.file.clone().unwrap_or_else(|| resolved(&claim.subject));
        let by = match claim.kind.as_str() {
            FILE_SHA256 => SubjectKind::Bytes,
            // A claim about a pattern covers the contents of each matching file.
            ARTIFACT_EXISTS | JSON_VALUE if is_pattern(&name) => SubjectKind::Bytes,
            ARTIFACT_EXISTS | JSON_VALUE => SubjectKind::File,
            DB_ROW => SubjectKind::Rows(asked(&claim.expect)),
            kind => SubjectKind::Kind(kind.to_owned()),
        };
        Self { name, by }
    }

    /// Returns the normalized path, or the subject.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether a write to `path` may change the subject.
    pub(crate) fn is_touched_by(&self, path: &str) -> bool {
        self.name == path || self.by == SubjectKind::Bytes && covers(&self.name, path)
    }

    /// Returns the common prefix of the other covered paths, and a filter for these paths; `None` if the
    /// bound covers a single file or thing.
    pub(crate) fn beneath(&self) -> Option<(&str, impl Fn(&str) -> bool)> {
        let from = match &self.name {
            pattern if is_pattern(pattern) => &pattern[..pattern.find(['*', '?', '[']).unwrap_or_default()],
            folder => folder,
        };
        (self.by == SubjectKind::Bytes)
            .then_some((from, |path: &str| path != self.name && covers(&self.name, path)))
    }

    /// Returns whether `newer` supersedes this bound, which ends the checks of this claim.
    pub(crate) fn gives_way_to(&self, newer: &Self) -> bool {
        if self.name != newer.name {
            let is_of_files = self.is_of_file() && newer.is_of_file();
            let covered = newer.by == SubjectKind::Bytes && covers(&newer.name, &self.name);
            return is_of_files && (covered || self.is_touched_by(&newer.name));
        }
        match (&self.by, &newer.by) {
            (SubjectKind::Kind(kind), by) | (by, SubjectKind::Kind(kind)) => {
                *by == SubjectKind::Kind(kind.clone())
            }
            (SubjectKind::Rows(asked), SubjectKind::Rows(newer)) => asked == newer,
            _ => true,
        }
    }

    /// Returns whether the claim is about files.
    pub(crate) fn is_of_file(&self) -> bool {
        !matches!(self.by, SubjectKind::Kind(_))
    }
}

fn asked(expect: &Value) -> String {
    let parts: Vec<Option<&Value>> = ASKED.iter().map(|key| expect.get(key)).collect();
    serde_json::to_string(&parts).expect("it came from JSON")
}

/// Returns whether a path lies in the folder `above`, or matches the pattern `above`, or lies in a matching
/// folder.
fn covers(above: &str, path: &str) -> bool {
    let is_in = |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    match above {
        "" => true,
        pattern if is_pattern(pattern) => reaches(pattern, path),
        folder => is_in(folder),
    }
}

/// The newest claim about each thing; `R` is its rank.
#[derive(Debug)]
pub(crate) struct Newest<R> {
    by_bound: HashMap<ClaimKey, R>,
    /// Ranks of claims about files, by file name.
    files: HashMap<String, R>,
    /// Ranks of claims about the bytes of folders or single files, by name.
    bytes: HashMap<String, R>,
    /// Ranks of claims about anything inside a folder, by the folder's name.
    beneath: HashMap<String, R>,
    patterns: HashMap<String, R>,
}

impl<R: Ord + Clone> Newest<R> {
    pub(crate) fn new() -> Self {
        Self {
            by_bound: HashMap::new(),
            files: HashMap::new(),
            bytes: HashMap::new(),
            beneath: HashMap::new(),
            patterns: HashMap::new(),
        }
    }

    pub(crate) fn note(&mut self, bound: ClaimKey, rank: R) {
        if bound.is_of_file() {
            for folder in folders_above(&bound.name) {
                raise(&mut self.beneath, folder.to_owned(), &rank);
            }
            raise(&mut self.files, bound.name.clone(), &rank);
        }
        if bound.by == SubjectKind::Bytes {
            let all = if is_pattern(&bound.name) { &mut self.patterns } else { &mut self.bytes };
            raise(all, bound.name.clone(), &rank);
        }
        raise(&mut self.by_bound, bound, &rank);
    }

    /// Returns the rank of the newest claim about the subject of `bound`.
    pub(crate) fn of(&self, bound: &ClaimKey) -> Option<&R> {
        let name = bound.name.as_str();
        let same = match &bound.by {
            SubjectKind::Kind(_) => return self.by_bound.get(bound),
            SubjectKind::Rows(_) => {
                let whole =
                    [SubjectKind::File, SubjectKind::Bytes].map(|by| ClaimKey { name: name.to_owned(), by });
                let whole = whole.iter().filter_map(|whole| self.by_bound.get(whole)).max();
                self.by_bound.get(bound).max(whole)
            }
            SubjectKind::File | SubjectKind::Bytes => self.files.get(name),
        };
        let above = folders_above(name).filter_map(|folder| self.bytes.get(folder)).max();
        let patterns = self.patterns.iter().filter(|(pattern, _)| *pattern != name && reaches(pattern, name));
        let above = above.max(patterns.map(|(_, rank)| rank).max());
        same.max(above).max(self.within(bound))
    }

    /// Returns the newest rank of claims inside the folder or pattern whose bytes `bound` covers.
    fn within(&self, bound: &ClaimKey) -> Option<&R> {
        if bound.by != SubjectKind::Bytes {
            return None;
        }
        if !is_pattern(&bound.name) {
            return self.beneath.get(&bound.name);
        }
        self.files.iter().filter(|(name, _)| reaches(&bound.name, name)).map(|(_, rank)| rank).max()
    }
}

fn raise<K: std::hash::Hash + Eq, R: Ord + Clone>(ranks: &mut HashMap<K, R>, key: K, rank: &R) {
    let newest = ranks.entry(key).or_insert_with(|| rank.clone());
    if *newest < *rank {
        *newest = rank.clone();
    }
}

/// Returns the folders that contain a path, innermost first; the last is the workflow file's folder, written
/// as "".
fn folders_above(path: &str) -> impl Iterator<Item = &str> {
    let above = path.rmatch_indices('/').map(|(end, _)| &path[..end]);
    above.chain(Some("").filter(|_| !path.is_empty()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bound(kind: &str, subject: &str) -> ClaimKey {
        ClaimKey::of(&Claim::new(kind, subject))
    }

    fn rows(subject: &str, table: &str) -> ClaimKey {
        ClaimKey::of(&Claim::new(DB_ROW, subject).expecting(json!({ "table": table, "count": 1 })))
    }

    /// Pairwise and indexed comparison agree: the older claim is superseded exactly if the newer one ranks
    /// highest.
    #[test]
    fn one_by_one_and_all_at_once_agree() {
        let subjects = ["a", "d", "d/f", "d/sub/f", "d/*.csv", "d/x.csv", "d/**", "*", ".", "x.db"];
        let kinds = [FILE_SHA256, ARTIFACT_EXISTS, JSON_VALUE, "port"];
        let mut all: Vec<ClaimKey> =
            subjects.iter().flat_map(|subject| kinds.map(|kind| bound(kind, subject))).collect();
        all.extend([rows("x.db", "t"), rows("x.db", "u"), rows("d/f", "t"), rows("postgres:env:DB", "t")]);
        for older in &all {
            for newer in &all {
                let mut newest = Newest::new();
                newest.note(older.clone(), 1);
                newest.note(newer.clone(), 2);
                let gives_way = newest.of(older) == Some(&2);
                assert_eq!(gives_way, older.gives_way_to(newer), "{older:?} {newer:?}");
                assert_eq!(newest.of(newer), Some(&2));
            }
        }
    }

    #[test]
    fn a_file_is_one_thing_whatever_is_claimed_about_it() {
        let pinned = bound(FILE_SHA256, "./x.db");
        assert!(pinned.gives_way_to(&rows("x.db", "t")));
        assert!(rows("x.db", "t").gives_way_to(&pinned));
        assert!(!rows("x.db", "t").gives_way_to(&rows("x.db", "u")), "both tables are to be as they were");
        assert!(bound(ARTIFACT_EXISTS, "f").gives_way_to(&bound(JSON_VALUE, "f")));
        assert!(!bound("git", ".").gives_way_to(&bound(FILE_SHA256, ".")));
    }

    #[test]
    fn the_bytes_of_a_folder_are_those_of_what_is_in_it() {
        let (folder, pattern) = (bound(FILE_SHA256, "d"), bound(FILE_SHA256, "d/*.csv"));
        for inner in [bound(FILE_SHA256, "d/x.csv"), bound(ARTIFACT_EXISTS, "d/x.csv"), pattern.clone()] {
            assert!(folder.gives_way_to(&inner) && inner.gives_way_to(&folder), "{inner:?}");
        }
        assert!(pattern.gives_way_to(&bound(ARTIFACT_EXISTS, "d/x.csv")));
        let holding = bound(ARTIFACT_EXISTS, "d/*.csv");
        for one in [bound(FILE_SHA256, "d/x.csv"), bound(JSON_VALUE, "d/x.csv"), pattern.clone()] {
            assert!(one.gives_way_to(&holding) && holding.gives_way_to(&one), "{one:?}");
        }
        assert!(!pattern.gives_way_to(&bound(ARTIFACT_EXISTS, "d/x.txt")));
        assert!(!folder.gives_way_to(&bound(FILE_SHA256, "data/x.csv")), "another folder");
        let there = bound(ARTIFACT_EXISTS, "d");
        assert!(!there.gives_way_to(&bound(FILE_SHA256, "d/x.csv")), "it is there as it was");
        assert!(!bound(FILE_SHA256, "d/x.csv").gives_way_to(&there), "nothing is said about the file");
    }
}
