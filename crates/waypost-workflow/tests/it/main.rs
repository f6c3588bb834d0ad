//! Tests of the workflow crate, one module a topic.

mod config;
mod evidence_bad;
mod expr;
mod file_bad;
mod file_good;
mod file_remote;
mod log;
mod mask;
mod output;
mod param_readers;
mod program;
mod random;
mod rig;
mod schema;
mod supervisor;
mod supervisor_faults;
mod supervisor_kills;

/// Asserts that `text` is the snapshot `name`; what it was made from is in the text itself.
fn assert_text(name: &str, text: &str) {
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, text);
    });
}
