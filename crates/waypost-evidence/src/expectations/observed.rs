//! Limits the size of found values in records.

use serde_json::{Value, json};

/// Longest text kept. Longer output belongs in a log, because records are kept forever.
const TEXT_CHARS_MAX: usize = 1_000;

/// Returns the value to record: a long text, a list or a map is replaced by its length.
///
/// A text is kept whole or not at all, because later masking could not recognise half a secret.
pub(crate) fn recorded(value: &Value) -> Value {
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
