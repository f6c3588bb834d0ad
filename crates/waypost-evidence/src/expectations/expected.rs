//! The expectation of a claim as a map of known keys.

use std::ops::Deref;
use std::sync::LazyLock;

use serde_json::{Map, Value};
use waypost::evidence::{Finding, InvalidExpectation};

use crate::expectations::expect::{check, fits};

static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

/// The expectation of a claim: a map in which every key is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected<'a>(&'a Map<String, Value>);

impl<'a> Expected<'a> {
    /// Reads an expectation: a map, or null for an empty map. `subject` names the subject in messages.
    pub(crate) fn read(expect: &'a Value, subject: &str, known: &[&str]) -> Result<Self, Finding> {
        let map = match expect {
            Value::Null => &*NOTHING,
            Value::Object(map) => map,
            other => return Err(Finding::failed(format!("unsupported expectation `{other}` of {subject}"))),
        };
        match map.keys().find(|name| !known.contains(&name.as_str())) {
            Some(other) => Err(Finding::unknown(format!("unsupported expectation `{other}`"))),
            None => Ok(Self(map)),
        }
    }

    /// Returns the value of a key, if present.
    pub(crate) fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name)
    }

    /// Returns a truth value, if present.
    pub(crate) fn flag(self, name: &str) -> Result<Option<bool>, Finding> {
        let truth = |value: &Value| {
            value.as_bool().ok_or_else(|| Finding::failed(format!("`{name}` is `true` or `false`")))
        };
        self.get(name).map(truth).transpose()
    }

    /// Returns a value that can be compared, if present.
    pub(crate) fn value(self, name: &str) -> Result<Option<&'a Value>, Finding> {
        self.checked(name, check)
    }

    /// Returns a value that passes `check`, if present.
    pub(crate) fn checked(
        self,
        name: &str,
        check: impl Fn(&Value) -> Result<(), InvalidExpectation>,
    ) -> Result<Option<&'a Value>, Finding> {
        let checked = |value| check(value).map(|()| value).map_err(|error| invalid(name, error));
        self.get(name).map(checked).transpose()
    }

    /// Returns a map of `entries`, such as columns; empty if absent.
    pub(crate) fn map(self, name: &str, entries: &str) -> Result<Map<String, Value>, Finding> {
        match self.get(name) {
            None => Ok(Map::new()),
            Some(Value::Object(map)) if !map.is_empty() => Ok(map.clone()),
            Some(_) => Err(Finding::failed(format!("`{name}` is a map of {entries} and values"))),
        }
    }
}

impl Deref for Expected<'_> {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

/// Returns whether the value found under a key fits the expectation.
pub(crate) fn holds(name: &str, expect: &Value, found: &Value) -> Result<bool, Finding> {
    fits(expect, found).map_err(|error| invalid(name, error))
}

/// Returns the finding for an expectation that cannot be compared.
pub(crate) fn invalid(name: &str, error: InvalidExpectation) -> Finding {
    Finding::failed(format!("`{name}`: {error}"))
}
