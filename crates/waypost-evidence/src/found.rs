//! What was found, as much of it as is kept.

use serde_json::{Value, json};

/// Longest text that is kept: more of it belongs into a log, and records are kept for ever.
const TEXT_CHARS_MAX: usize = 1_000;

/// Makes of a value what is kept of it: of long texts, lists and maps, how long they are.
///
/// A text is kept whole or not at all: what hides secrets in it later would not know half of one.
pub(crate) fn kept(value: &Value) -> Value {
    match value {
        Value::String(text) => match text.chars().count() {
            0..=TEXT_CHARS_MAX => value.clone(),
            chars => json!({ "chars": chars }),
        },
        Value::Array(items) => json!({ "items": items.len() }),
        Value::Object(map) => json!({ "keys": map.len() }),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
