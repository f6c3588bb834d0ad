//! Random input: nothing panics, nothing that is the shell's is touched.

use std::path::Path;

use proptest::prelude::*;
use serde_json::Map;
use waypost_workflow::expr::{Condition, Scope, Template};
use waypost_workflow::file::{Workflow, parse_duration, parse_params};
use waypost_workflow::output::{Capture, JsonPath, parse_output_file};

const EXAMPLE: &str = include_str!("files/nightly-report.yaml");

/// Checks `bytes`, and that whatever is said about them can be shown and has its places in the text.
fn check(bytes: &[u8]) {
    let Err(error) = Workflow::parse_bytes(bytes, Path::new("w.yaml")) else { return };
    assert!(!error.problems().is_empty(), "an error says what is wrong");
    for problem in error.problems() {
        assert!(
            problem.line >= 1 && problem.column >= 1 && problem.end_column >= problem.column,
            "{problem:?}"
        );
    }
    assert!(error.render().starts_with("error: "));
    assert!(!error.render().contains('\u{1b}'), "control characters of the file are not shown");
}

/// The example with a few bytes changed, lost or doubled.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edit = (0..EXAMPLE.len(), 0..4u8, any::<u8>(), "[-:{}\\[\\]'\"&*!|>%@#\n\t $.a0]{1,4}");
    proptest::collection::vec(edit, 1..6).prop_map(|edits| {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        for (at, kind, byte, text) in edits {
            let at = at.min(bytes.len() - 1);
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.drain(at..(at + usize::from(byte)).min(bytes.len() - 1))),
                2 => drop(bytes.splice(at..at, text.bytes())),
                _ => bytes.truncate(at.max(1)),
            }
        }
        bytes
    })
}

/// Text from the words of the expression language, in any order.
fn expression() -> impl Strategy<Value = String> {
    let words = [
        "params",
        "steps",
        "env",
        "run",
        ".",
        ".a-b",
        ".outputs.x",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        "==",
        "<",
        "&&",
        "||",
        "!",
        "not",
        "is",
        "in",
        "if",
        "else",
        "'x'",
        "\"",
        "'",
        "5",
        "1.5",
        "|",
        "default",
        "skipped(a)",
        "always()",
        "=",
        ",",
        ":",
        "null",
        "+",
        "-",
        "*",
        "**",
        "~",
        "defined",
        "}}",
        "${{",
        "%",
        "\\",
        "\u{e9}",
    ];
    proptest::collection::vec(proptest::sample::select(words.to_vec()), 0..14)
        .prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        check(&bytes);
        let _ = parse_params(&bytes, Path::new("p.yaml"));
        let _ = parse_output_file(&bytes);
        for capture in Capture::ALL {
            let _ = capture.convert(&bytes);
        }
    }

    #[test]
    fn random_text_is_an_answer(text in "\\PC{0,200}") {
        check(text.as_bytes());
        let _ = (parse_duration(&text), JsonPath::parse(&text), JsonPath::parse(&format!("$.{text}")));
        let _ = Template::parse(&text);
        let _ = Condition::parse(&text);
    }

    #[test]
    fn yaml_like_text_is_an_answer(text in "([-:{}\\[\\]'\"&*!|>%@# \n\t]|steps|run|id|a|- |: |\\$\\{\\{|\\}\\}){0,60}") {
        check(text.as_bytes());
    }

    #[test]
    fn a_damaged_example_is_an_answer(bytes in mutated()) {
        check(&bytes);
    }

    #[test]
    fn random_expressions_are_an_answer(text in expression()) {
        let scope = Scope::new("r", &Map::new());
        if let Ok(template) = Template::parse(&format!("a ${{{{ {text} }}}} b")) {
            let _ = template.render(&scope);
        }
        if let Ok(condition) = Condition::parse(&text) {
            let _ = condition.holds(&scope);
        }
    }

    #[test]
    fn text_without_a_hole_passes_untouched(text in "([^$]|\\$[^{]|\\$\\{[^{]){0,100}") {
        prop_assume!(!text.contains("${{"));

        let template = Template::parse(&text).unwrap();

        prop_assert_eq!(template.render(&Scope::new("r", &Map::new())).unwrap(), text);
    }

    #[test]
    fn a_run_text_in_a_file_is_kept_byte_for_byte(lines in proptest::collection::vec("[!-#%-~]([ -#%-~]{0,30}[!-#%-~])?", 1..6)) {
        let indented: String = lines.iter().map(|line| format!("    {line}\n")).collect();
        let workflow = Workflow::parse(&format!("- run: |\n{indented}"), Path::new("w.yaml")).unwrap();

        prop_assert_eq!(workflow.steps()[0].work.command().unwrap().as_str(), format!("{}\n", lines.join("\n")));
    }
}
