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
fn traces_of_trial_runs_in_the_root_are_found() {
    let found = findings_of(&[("Cargo.lock", ""), ("flow.yaml", ""), ("d/trace", ""), ("docs/a.yaml", "")]);

    assert_eq!(found, ["flow.yaml: is no known entry of the root", "d/trace: is no known entry of the root"]);
}

#[test]
fn long_sources_are_found_and_long_tests_are_not() {
    let long = "x\n".repeat(1_001);

    let found =
        findings_of(&[("a/src/long.rs", &long), ("a/tests/it/long.rs", &long), ("a/src/tests.rs", &long)]);

    assert_eq!(found, ["a/src/long.rs: 1001 lines, the limit is 1000: split it by topic"]);
}

#[test]
fn the_architecture_page_has_a_limit_of_its_own() {
    let found = findings_of(&[("ARCHITECTURE.md", &"x\n".repeat(151))]);

    assert_eq!(found, ["ARCHITECTURE.md: 151 lines, the limit is 150: split it by topic"]);
}

#[test]
fn folders_of_one_machine_are_found_outside_of_other_paths() {
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
fn test_names_have_at_most_sixty_characters() {
    let text = format!(
        "#[test]\nfn {ok}() {{}}\n#[tokio::test(start_paused = true)]\nasync fn {long}() {{}}\nfn {long}() {{}}\n",
        ok = "a".repeat(60),
        long = "b".repeat(61),
    );

    let found = findings_of(&[("a/tests/it/x.rs", &text)]);

    assert_eq!(found, ["a/tests/it/x.rs:4: the name of a test has 61 characters, the limit is 60"]);
}

#[test]
fn snapshots_without_a_test_are_found() {
    let text =
        "#[test]\nfn a_claim() { check(\"plain\"); check(&format!(\"wrong_{name}\")); case(\"no_key\") }\n";
    let folder = "crates/a/tests/it/snapshots";
    let snapshot = |name: &str| format!("{folder}/{name}.snap");
    let names = ["plain", "wrong_no_key", "it__x__a_claim-2", "plain_old", "wrong_key", "it__x__a_cl"];
    let paths = names.map(snapshot);
    let mut files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), "")).collect();
    files.extend([("crates/a/tests/it/x.rs", text), ("crates/b/tests/it/y.rs", "check(\"plain_old\")")]);

    let found = findings_of(&files);

    let expect = ["plain_old", "wrong_key", "it__x__a_cl"]
        .map(|name| format!("{folder}/{name}.snap: no test names this snapshot: delete the file"));
    assert_eq!(found, expect);
}

#[test]
fn pages_name_the_rust_of_the_manifest() {
    let manifest = "[workspace.package]\nrust-version = \"1.95\"\n";
    let page = "Rust 1.95 or newer\nRust 1.89 or newer\n";

    let found = findings_of(&[("Cargo.toml", manifest), ("a.md", page)]);

    assert_eq!(found, ["a.md:2: names another Rust than `rust-version`: Rust 1.95"]);
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
fn the_site_lists_its_pages_and_stays_inside() {
    let list = "# Summary\n[A](a.md)\n- [B](x/b.md)\n";
    let page = "[own](#b) [a](../a.md) [web](https://a.invalid)\n[out](../../y.md)\n# B\n";

    let found = findings_of(&[
        ("docs/SUMMARY.md", list),
        ("docs/a.md", ""),
        ("docs/c.md", ""),
        ("docs/x/b.md", page),
        ("y.md", ""),
    ]);

    assert_eq!(
        found,
        [
            "docs/c.md: is not in `docs/SUMMARY.md`",
            "docs/x/b.md:2: the link `../../y.md` leaves the site: name the file as `code`",
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

#[test]
fn prose_above_the_rule_is_found_by_area() {
    let plain = "A run has steps. ".repeat(60);
    let banned = "nobody";
    let vague = format!("// {plain}\n// It is what it was, and {banned} knows `it`.\n");
    let vague = vague.repeat(2);
    let few = "It is what it is.\n";
    let lines = plain.replace(". ", ".\n");

    let found = findings_of(&[("crates/a/src/x.rs", &vague), ("docs/a.md", few), ("README.md", &lines)]);

    assert_eq!(
        found,
        [
            "crates/a comments: 4.0 banned words per 1,000 words, the limit is 0: see `cargo xtask tidy --report`"
        ]
    );
}

#[test]
fn pronouns_are_counted_outside_of_code_only() {
    let count = words::Count::of("It's 1st: what `it that` of those-such IT, one.");

    assert_eq!(count, words::Count { words: 8, pronouns: 3, banned: 0 });
}

#[test]
fn places_above_the_rule_are_found_by_crate() {
    let long = format!("{}\n| {} |\n```\n{}\n```\n", "x".repeat(101), "y".repeat(101), "z".repeat(101));
    let code = "struct A;\nfn f(a: (u8, u8, u8), b: bool, c: bool) {}\n";

    let found = findings_of(&[
        ("guide/a.md", &long),
        ("crates/a/src/lib.rs", "mod b;\nmod c;\npub use b::Thing;\nstruct Thing;"),
        ("crates/a/src/b.rs", &format!("{code}use crate::c;")),
        ("crates/a/src/c.rs", "struct A;\nfn f(a: crate::Thing) {}"),
    ]);

    let see = "see `cargo xtask tidy --report`";
    assert_eq!(
        found,
        [
            format!("crates/a: 1 tuple parameters, the limit is 0: {see}"),
            format!("crates/a: 1 flag pairs, the limit is 0: {see}"),
            format!("crates/a: 1 shared type names, the limit is 0: {see}"),
            format!("crates/a: 2 rooms in cycles, the limit is 0: {see}"),
            format!("guide: 1 long lines of pages, the limit is 0: {see}"),
        ]
    );
}

#[test]
fn a_crate_has_at_most_fifteen_entries() {
    let paths: Vec<String> = (0..16).map(|at| format!("crates/a/src/m{at}.rs")).collect();
    let files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), "")).collect();

    let found = findings_of(&files);

    assert_eq!(found, ["crates/a: 16 entries of `src`, the limit is 15: see `cargo xtask tidy --report`"]);
}

#[test]
fn the_pure_core_awaits_nothing_and_reads_no_store() {
    let text = "use crate::store::Progress;\n// await the store\nfn a(stored: u8) {}\nasync fn b() {}\nlet x = store.load();\n";
    let long = "x\n".repeat(1_196);
    let tree = Tree::of(&[
        ("crates/waypost/src/engine/walk/trace.rs", text),
        ("crates/waypost/src/engine/walk/reuse.rs", &long),
        ("crates/waypost/src/engine/time_travel/fork.rs", text),
    ]);

    let found: Vec<String> = pure_core::check(&tree).iter().map(ToString::to_string).collect();

    assert_eq!(
        found,
        [
            "crates/waypost/src/engine/walk/trace.rs:4: `async` in the pure core of the engine",
            "crates/waypost/src/engine/walk/trace.rs:5: `store` in the pure core of the engine",
            "crates/waypost/src/engine: the core files have 1201 lines together, the limit is 1200",
        ]
    );
}

#[test]
fn the_report_names_the_cycle_and_its_cheapest_edge() {
    let tree = Tree::of(&[
        ("crates/a/src/b.rs", "use crate::c;\nuse crate::c::d;"),
        ("crates/a/src/c.rs", "use crate::b;"),
    ]);

    let text = report::of(&tree, 1);

    assert!(text.contains("\ncycles of crates/a\n  b, c\n    c -> b (1): crates/a/src/c.rs:1\n"), "{text}");
}
