//! The guide: all code of its pages is compiled and run here.
//!
//! Each page of docs/guide has a module with its code. A page shows parts of that module. [`page_says`] checks
//! the printed output of a page.

mod asking;
mod changing;
mod crashes;
mod errors;
mod evidence;
mod first_graph;
mod forks;
mod inside;
mod limits;
mod loops;
mod readme;
mod stores;
mod time_travel;

use std::fs;
use std::path::{Path, PathBuf};

/// Blocks in these languages are not code of the guide: manifests, commands and output. Every other block is
/// checked.
const NOT_OURS: &[&str] = &["toml", "sh"];

fn pages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide")
}

/// Returns the non-empty lines without indentation: a page shows code without its function.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

fn has(whole: &[&str], part: &[&str]) -> bool {
    !part.is_empty() && whole.windows(part.len()).any(|window| window == part)
}

/// Asserts that the page shows this text in a block.
fn page_says(page: &str, text: &str) {
    let page_text = fs::read_to_string(pages().join(page)).unwrap();
    let said = blocks(&page_text).iter().any(|(_, block)| has(&lines(block), &lines(text)));
    assert!(said, "docs/guide/{page} does not say:\n{text}");
}

/// Returns the language and the text of each fenced block.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((_, block)), None) => *block += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

#[test]
fn every_block_of_code_on_a_page_is_code_that_ran() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/guide");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = [here, examples].into_iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let sources: Vec<String> =
        files.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
    let sources: Vec<Vec<&str>> = sources.iter().map(|source| lines(source)).collect();
    let (mut checked, mut strange) = (0, Vec::new());

    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let guide = fs::read_dir(pages()).unwrap().map(|entry| entry.unwrap().path());
    for path in guide.chain([readme.clone()]) {
        for (language, block) in blocks(&fs::read_to_string(&path).unwrap()) {
            checked += 1;
            let ran = sources.iter().any(|source| has(source, &lines(&block)));
            // The test of the page checks its output with `page_says`.
            let printed = matches!(language.as_str(), "mermaid" | "text");
            // The README also covers the command, whose tests are elsewhere.
            let other = path == readme && language != "rust";
            if !ran && !printed && !other && !NOT_OURS.contains(&language.as_str()) {
                strange.push(format!("{}, `{language}`:\n{block}", path.display()));
            }
        }
    }

    assert!(checked > 20, "the pages were not found");
    assert!(strange.is_empty(), "no test has this code:\n{}", strange.join("\n"));
}
