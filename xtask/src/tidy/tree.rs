//! The text files of a folder, in memory.

use std::fs;
use std::io;
use std::path::Path;

/// Largest source file; larger files are fixtures and databases.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Deepest folder; the limit stops link cycles.
const DEPTH_MAX: usize = 16;

/// A text file.
#[derive(Debug)]
pub(super) struct File {
    /// The path from the root, separated by `/`.
    pub(super) path: String,
    pub(super) text: String,
}

impl File {
    /// Returns the extension of the file name, or an empty text.
    pub(super) fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// Returns the lines with their 1-based numbers.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Returns the numbered lines of a page, without its code blocks.
    pub(super) fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut in_code = false;
        self.lines().filter(move |(_, line)| {
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            !in_code && !fence
        })
    }

    /// Returns whether the file contains only tests, for which some rules are milder.
    pub(super) fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.starts_with("tests/") || self.path.ends_with("/tests.rs")
    }
}

/// All files below a folder, sorted by path; text files with their content.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: Vec<File>,
    /// Paths of binary files, such as pictures and fixtures.
    others: Vec<String>,
}

impl Tree {
    /// Reads the files below `root`, except git-ignored files: hidden folders (other than this repository's),
    /// cargo output, and folders created by example runs.
    ///
    /// # Errors
    /// If a folder or file cannot be read.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.walk(root, "", DEPTH_MAX)?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File { path: path.to_owned(), text: text.to_owned() };
        Self { files: files.iter().map(file).collect(), others: Vec::new() }
    }

    pub(super) fn files(&self) -> &[File] {
        &self.files
    }

    /// Returns the files with any of these extensions.
    pub(super) fn with_extension<'a>(&'a self, extensions: &'a [&str]) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(|file| extensions.contains(&file.extension()))
    }

    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns whether `path` is a file or a folder with files.
    pub(super) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let mut paths = self.files.iter().map(|file| &file.path).chain(&self.others);
        path.is_empty()
            || paths.any(|file| {
                file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
    }

    fn walk(&mut self, dir: &Path, prefix: &str, depth: usize) -> io::Result<()> {
        if depth == 0 || dir.join("CACHEDIR.TAG").exists() {
            return Ok(());
        }
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && !is_ignored(&name) {
                self.walk(&entry.path(), &format!("{path}/"), depth - 1)?;
            } else if kind.is_file() && name != ".git" {
                match read_text(&entry)? {
                    Some(text) => self.files.push(File { path, text }),
                    None => self.others.push(path),
                }
            }
        }
        Ok(())
    }
}

fn read_text(entry: &fs::DirEntry) -> io::Result<Option<String>> {
    if entry.metadata()?.len() > FILE_BYTES_MAX {
        return Ok(None);
    }
    Ok(String::from_utf8(fs::read(entry.path())?).ok())
}

fn is_ignored(folder: &str) -> bool {
    let ours = matches!(folder, ".ci" | ".cargo" | ".github");
    (folder.starts_with('.') && !ours) || matches!(folder, "target" | "out" | "node_modules")
}
