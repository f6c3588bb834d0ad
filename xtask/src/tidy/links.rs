//! Rules for pages: links must resolve.

use super::Finding;
use super::tree::{File, Tree};

/// The required headings of a decision page, among them its price.
const DECISION_PARTS: &[&str] = &["## Context", "## Choice", "## What we gave up"];

/// Every relative link of a Markdown page resolves to a file, and its `#part` to a heading.
pub(super) fn markdown_links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(&["md"]) {
        for (number, line) in file.prose() {
            for target in targets(line) {
                if let Some(message) = broken(tree, file, target) {
                    findings.push(Finding::new(&file.path, number, message));
                }
            }
        }
    }
    findings
}

/// The site: every page of `docs` is in its list, and links only to pages of the site.
pub(super) fn site(tree: &Tree) -> Vec<Finding> {
    let Some(list) = tree.file("docs/SUMMARY.md") else { return Vec::new() };
    let listed: Vec<&str> = list.lines().flat_map(|(_, line)| targets(line)).collect();
    let mut findings = Vec::new();
    for page in tree.with_extension(&["md"]).filter(|page| page.path != list.path) {
        let Some(path) = page.path.strip_prefix("docs/") else { continue };
        if !listed.contains(&path) {
            findings.push(Finding::new(&page.path, 0, "is not in `docs/SUMMARY.md`"));
        }
        for (number, line) in page.prose() {
            let outside = targets(line).filter(|target| {
                let path = target.split('#').next().unwrap_or_default();
                !path.is_empty()
                    && !target.contains("://")
                    && !resolve(&page.path, path).is_some_and(|to| to.starts_with("docs/"))
            });
            let message = |target| format!("the link `{target}` leaves the site: name the file as `code`");
            findings.extend(outside.map(|target| Finding::new(&page.path, number, message(target))));
        }
    }
    findings
}

/// Every page of `docs/` named in a text exists, linked or not; tests may name invented pages.
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

/// Decisions are numbered without gaps, and each has the required headings.
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

/// Returns the targets of the inline links in a line.
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
    let found = page.prose().any(|(_, line)| slug(line).as_deref() == Some(part));
    (!found).then(|| format!("the link `{target}` leads to no heading of that page"))
}

/// Returns the path of `target` relative to the folder of the file `from`; `None` if it leaves the root.
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

/// Returns the anchor of a heading, as generated by common forges.
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
