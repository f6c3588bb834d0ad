//! Tests of the import crate, one module a topic.

mod foreign;
mod git;
mod items;
mod random;
mod retries;
mod states;
mod tables;
mod validation;
mod variables;

use std::path::Path;

use waypost_import::{Imported, Note};

/// The made file of a workflow of Prodigy. Its only warnings are about pasted values and about values that Prodigy
/// does not expand either.
fn import(source: &str) -> Imported {
    let imported = waypost_import::prodigy(source.as_bytes(), Path::new("p.yml"))
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{source}", std::error::Error::source(&error)));
    let is_told = imported.notes.iter().any(|note| note.message.contains("is pasted into the command"));
    let mut warnings = imported.workflow.all_warnings();
    warnings.retain(|warning| !warning.render().contains("nothing expands"));
    assert_eq!(!warnings.is_empty(), is_told, "{warnings:?}\n{}", imported.text);
    imported
}

/// The text of the made file.
fn made(source: &str) -> String {
    import(source).text
}

/// The notes on the differences.
fn notes(source: &str) -> Vec<Note> {
    import(source).notes
}

/// The notes and the made file as one text, without the head that all made files share.
fn imported(source: &str) -> String {
    let imported = import(source);
    let notes = imported
        .notes
        .iter()
        .map(|note| format!("p.yml:{}: {}: {} ({})\n", note.line, note.key, note.message, note.help));
    let (_, made) =
        imported.text.split_once("each value as one word.\n").expect("every made file has this head");
    format!("{}---\n{made}", notes.collect::<String>())
}

/// Compares all cases, each with its name, with the snapshot `name`.
fn table(name: &str, cases: &[(&str, &str)]) {
    let text = cases.iter().map(|(what, source)| format!("##### {what}\n{}\n", imported(source)));
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, text.collect::<String>());
    });
}
