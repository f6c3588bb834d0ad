//! Each rule finds its violation, and the repository has none.

use super::tree::Tree;
use super::*;

/// Returns the findings in `files`, a line per finding.
fn findings_of(files: &[(&str, &str)]) -> Vec<String> {
    findings(&Tree::of(files)).iter().map(ToString::to_string).collect()
}

#[test]
fn the_repository_is_tidy() {
    let tree = Tree::read(&crate::repo::root()).unwrap();

    assert!(tree.file("xtask/src/tidy.rs").is_some(), "the walk did not see this crate");
    let found: Vec<String> = findings(&tree).iter().map(|finding| format!("\n{finding}")).collect();
    assert!(found.is_empty(), "{}", found.concat());
}

#[test]
fn long_sources_are_found_and_long_tests_are_not() {
    let long = "x\n".repeat(601);

    let found =
        findings_of(&[("a/src/long.rs", &long), ("a/tests/it/long.rs", &long), ("a/src/tests.rs", &long)]);

    assert_eq!(found, ["a/src/long.rs: 601 lines, the limit is 600: split it by topic"]);
}

#[test]
fn the_architecture_page_has_a_limit_of_its_own() {
    let found = findings_of(&[("ARCHITECTURE.md", &"x\n".repeat(151))]);

    assert_eq!(found, ["ARCHITECTURE.md: 151 lines, the limit is 150: split it by topic"]);
}

#[test]
fn folders_of_one_machine_are_found_and_parts_of_other_paths_are_not() {
    let mine = concat!("in /ho", "me/joe/x");
    let text =
        format!("{mine}\nhttps://example.invalid{}\n{}\n", concat!("/ho", "me/x"), concat!("/ho", "me/me/x"));

    let found = findings_of(&[("a.sh", &text)]);

    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("a.sh:1: names the folder"), "{found:?}");
}

#[test]
fn later_work_needs_a_number() {
    let word = concat!("TO", "DO");
    let text = format!("// {word}: soon\n// {word}(#12): soon\n// {word}(#x)\nlet {word}S = 1;\n");

    let found = findings_of(&[("a.rs", &text)]);

    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("a.rs:1:") && found[1].starts_with("a.rs:3:"), "{found:?}");
}

#[test]
fn names_that_say_nothing_are_found_word_by_word() {
    let text = "pub struct RunManager;\npub(crate) enum Metadata {}\nstruct Database;\ntrait Info {}\ntype RunData = X;\n";

    let found = findings_of(&[("a/src/x.rs", text), ("a/src/utils.rs", "")]);

    assert_eq!(
        found,
        [
            "a/src/x.rs:1: `RunManager`: `Manager` does not say what it is",
            "a/src/x.rs:4: `Info`: `Info` does not say what it is",
            "a/src/x.rs:5: `RunData`: `Data` does not say what it is",
            "a/src/utils.rs: a module `utils` has no topic",
        ]
    );
}

#[test]
fn lints_and_tests_are_not_silenced_without_a_reason() {
    let text =
        "#[allow(dead_code)]\n#[expect(dead_code, reason = \"x\")]\n#[ignore]\n#[ignore = \"needs x\"]\n";

    let found = findings_of(&[("a/src/x.rs", text)]);

    assert_eq!(
        found,
        [
            "a/src/x.rs:1: silence a lint by `#[expect(lint, reason = \"...\")]`",
            "a/src/x.rs:3: say what the test needs: `#[ignore = \"needs ...\"]`",
        ]
    );
}

#[test]
fn manifests_take_lints_and_versions_from_the_workspace() {
    let good = "[lints]\nworkspace = true\n[dependencies]\na.workspace = true\nb = { workspace = true, features = [] }\n";
    let bad = "[dependencies]\na = \"1\"\n";
    let root =
        "[workspace.dependencies]\na = \"1\" # Reason.\nb = \"1\"\nours = { path = \"crates/ours\" }\n";

    let found = findings_of(&[("good/Cargo.toml", good), ("bad/Cargo.toml", bad), ("Cargo.toml", root)]);

    assert_eq!(
        found,
        [
            "bad/Cargo.toml: lacks `[lints]` with `workspace = true`",
            "bad/Cargo.toml:2: take the dependency from the workspace: `name.workspace = true`",
            "Cargo.toml:3: say why in a comment at the end of the line",
        ]
    );
}

#[test]
fn links_lead_to_files_and_headings() {
    let page = "# A Title, with `code`\n[up](../x.md) [part](#a-title-with-code) [web](https://a.invalid/b) [dir](../docs)\n\
                [gone](y.md) [no part](../x.md#none) [out](../../../z.md)\n```\n[code](nothing.md)\n```\n";

    let found = findings_of(&[("docs/page.md", page), ("x.md", "# X\n")]);

    assert_eq!(
        found,
        [
            "docs/page.md:3: the link `y.md` leads to no file",
            "docs/page.md:3: the link `../x.md#none` leads to no heading of that page",
            "docs/page.md:3: the link `../../../z.md` leads to no file",
        ]
    );
}

#[test]
fn a_page_that_a_comment_names_is_there() {
    let text = "// See docs/a.md and docs/gone.md, not https://x.invalid/docs/z.md.\n";

    let found = findings_of(&[("a.rs", text), ("docs/a.md", "")]);

    assert_eq!(found, ["a.rs:1: names `docs/gone.md`, which is not there"]);
}

#[test]
fn decisions_are_numbered_and_say_what_was_given_up() {
    let whole = "# T\n## Context\n## Choice\n## What we gave up\n";

    let found = findings_of(&[
        ("docs/decisions/0001-a.md", whole),
        ("docs/decisions/0003-b.md", "## Context\n## Choice\n"),
    ]);

    assert_eq!(
        found,
        [
            "docs/decisions/0003-b.md: the next free number is 0002",
            "docs/decisions/0003-b.md: lacks the part `## What we gave up`",
        ]
    );
}
