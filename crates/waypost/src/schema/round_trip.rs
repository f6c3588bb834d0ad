//! Round-trip check of a state.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{DecodeError, decode};
use crate::json::path::{FieldPath, quoted};
use crate::record::{Flaw, encode};

/// Checks that a state survives a round trip: encodes, decodes, encodes again and compares.
///
/// For a test of an own state type, or once before a long run. The check detects more than [`encode`] alone,
/// such as a field written and not read, or a type without a working reader. The order of keys and of
/// elements is ignored, as hash sets iterate in varying order. Costs about four times an encoding.
///
/// # Errors
/// - Those of [`encode`].
/// - [`Flaw::Unkept`]: names the unreadable or changed field.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use waypost::schema::check_state;
///
/// #[derive(Serialize, Deserialize)]
/// struct State {
///     price: f64,
///     #[serde(skip_deserializing)]
///     note: String,
/// }
///
/// assert!(check_state(&State { price: 1.5, note: String::new() }).is_ok());
/// let refused = check_state(&State { price: f64::NAN, note: String::new() }).unwrap_err();
/// assert_eq!(refused.to_string(), "price: JSON has no NaN");
/// let refused = check_state(&State { price: 1.5, note: "lost".into() }).unwrap_err();
/// assert_eq!(refused.to_string(), r#"note: written as "lost", read back as """#);
/// ```
pub fn check_state<S: Serialize + DeserializeOwned>(state: &S) -> Result<(), Flaw> {
    let mut bytes = Vec::new();
    encode(state, &mut bytes)?;
    check_written::<S>(&bytes)
}

/// As [`check_state`], for an encoded state.
pub(crate) fn check_written<S: Serialize + DeserializeOwned>(first: &[u8]) -> Result<(), Flaw> {
    let read = decode::<S>(first).map_err(unread)?;
    let mut second = Vec::with_capacity(first.len());
    encode(&read, &mut second)?;
    if first == second {
        return Ok(());
    }
    let (first, second) = (decode(first).map_err(unread)?, decode(&second).map_err(unread)?);
    changed(&first, &second, &mut FieldPath::default()).map_or(Ok(()), Err)
}

fn unread(error: DecodeError) -> Flaw {
    Flaw::Unkept { path: error.path, why: format!("the state could not be read back: {}", error.why) }
}

/// Finds the first value of `first` that `second` lacks.
fn changed(first: &Value, second: &Value, path: &mut FieldPath) -> Option<Flaw> {
    match (first, second) {
        _ if first == second => None,
        (Value::Object(first), Value::Object(second)) if first.len() == second.len() => {
            first.iter().find_map(|(key, value)| {
                path.push(key.as_str());
                let flaw = match second.get(key) {
                    Some(other) => changed(value, other, path),
                    None => Some(Flaw::Unkept { path: path.clone(), why: "the value is lost".to_owned() }),
                };
                path.pop();
                flaw
            })
        }
        (Value::Array(first), Value::Array(second)) if first.len() == second.len() => {
            if in_some_order(first) == in_some_order(second) {
                return None;
            }
            first.iter().zip(second).enumerate().find_map(|(index, (value, other))| {
                path.push(index);
                let flaw = changed(value, other, path);
                path.pop();
                flaw
            })
        }
        _ => {
            let why = format!("written as {}, read back as {}", shown(first), shown(second));
            Some(Flaw::Unkept { path: path.clone(), why })
        }
    }
}

/// Returns the elements in canonical order: each as text with sorted keys and elements, then sorted.
fn in_some_order(elements: &[Value]) -> Vec<String> {
    let mut texts: Vec<String> = elements.iter().map(canonical).collect();
    texts.sort_unstable();
    texts
}

fn canonical(value: &Value) -> String {
    match value {
        Value::Array(elements) => format!("[{}]", in_some_order(elements).join(",")),
        Value::Object(members) => {
            let mut texts: Vec<String> = members
                .iter()
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), canonical(value)))
                .collect();
            texts.sort_unstable();
            format!("{{{}}}", texts.join(","))
        }
        scalar => scalar.to_string(),
    }
}

/// Returns a short text that identifies a value.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(elements) => format!("{} elements", elements.len()),
        Value::Object(members) => format!("{} members", members.len()),
        scalar => scalar.to_string(),
    }
}
