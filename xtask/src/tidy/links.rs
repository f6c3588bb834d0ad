//! Rules for pages: a link leads somewhere.

use super::Finding;
use super::tree::{File, Tree};

/// The parts of a decision page, so that a reader finds the price of each.
const DECISION_PARTS: &[&str] = &["## Context", "## Choice", "## What we gave up"];

/// Every relative link of a Markdown page leads to a file, and its `#part` to a heading there.
pub(super) fn markdown_links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(&["md"]) {
        for (number, line) in prose(file) {
            for target in targets(line) {
                if let Some(message) = broken(tree, file, target) {
                    findings.push(Finding::new(&file.path, number, message));
                }
            }
        }
    }
    findings
}

/// Every page of `docs/` that a text names, with or without a link, is there; tests may name pages of their own.
pub(super) fn named_pages(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files().iter().filter(|file| !file.is_test()) {
        for (number, line) in file.lines() {
            for (at, _) in line.match_indices("docs/") {
                let end = line[at..].find(|c: char| !is_path_character(c)).map_or(line.len(), |end| at + end);
                let page = line[at..end].trim_end_matches('.');
                let ours = !line[..at].ends_with(is_path_character) && page.ends_with(".md");
                if ours && !tree.has(page) {
                    findings.push(Finding::new(
                        &file.path,
                        number,
                        format!("names `{page}`, which is not there"),
                    ));
                }
            }
        }
    }
    findings
}

/// Decisions are numbered without a gap, and each says what was given up.
pub(super) fn decision_pages(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pages = tree.files().iter().filter(|file| file.path.starts_with("docs/decisions/"));
    for (index, page) in pages.enumerate() {
        let expect = format!("docs/decisions/{:04}-", index + 1);
        if !page.path.starts_with(&expect) {
            findings.push(Finding::new(&page.path, 0, format!("the next free number is {:04}", index + 1)));
        }
        for part in DECISION_PARTS {
            if !page.text.lines().any(|line| line == *part) {
                findings.push(Finding::new(&page.path, 0, format!("lacks the part `{part}`")));
            }
        }
    }
    findings
}

/// The lines outside of code blocks.
fn prose(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    file.lines().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The targets of the inline links in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(at, _)| line[at + 2..].split_once(')')).map(|(target, _)| target)
}

fn broken(tree: &Tree, from: &File, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, part) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { Some(from.path.clone()) } else { resolve(&from.path, path) };
    let Some(path) = path.filter(|path| tree.has(path)) else {
        return Some(format!("the link `{target}` leads to no file"));
    };
    let page = tree.file(&path).filter(|page| !part.is_empty() && page.extension() == "md")?;
    let found = prose(page).any(|(_, line)| slug(line).as_deref() == Some(part));
    (!found).then(|| format!("the link `{target}` leads to no heading of that page"))
}

/// The path of `target` as seen from the folder of the file `from`; an escape from the root stays unresolved.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The anchor that a heading gets on the usual forges.
fn slug(line: &str) -> Option<String> {
    let title = line.trim_start_matches('#');
    if title.len() == line.len() || !title.starts_with(' ') {
        return None;
    }
    let kept = title.trim().to_lowercase();
    Some(
        kept.chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect(),
    )
}

fn is_path_character(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')
}
