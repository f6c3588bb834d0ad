//! Variables for the programs of claims, and the masking of secrets in their output.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use waypost::evidence::Finding;

type Mask = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// The variables for the programs of claims. Cloning is cheap.
#[derive(Clone)]
pub struct Environment {
    variables: Arc<[(OsString, OsString)]>,
    withheld: Arc<BTreeSet<OsString>>,
    mask: Option<Mask>,
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only counts: debug output ends up in logs.
        let (variables, withheld) = (self.variables.len(), self.withheld.len());
        f.debug_struct("Environment")
            .field("variables", &variables)
            .field("withheld", &withheld)
            .finish_non_exhaustive()
    }
}

impl Environment {
    /// Creates an environment with these variables.
    pub fn of(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self { variables: variables.into_iter().collect(), withheld: Arc::default(), mask: None }
    }

    /// Creates an environment with the variables of this process.
    #[must_use]
    pub fn inherited() -> Self {
        Self::of(std::env::vars_os())
    }

    /// Withholds these variables from programs whose claim does not name them.
    #[must_use]
    pub fn withholding(self, names: impl IntoIterator<Item = OsString>) -> Self {
        Self { withheld: Arc::new(names.into_iter().collect()), ..self }
    }

    /// Masks secrets with `mask` in all program output that a finding keeps.
    #[must_use]
    pub fn masked_by(self, mask: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self { mask: Some(Arc::new(mask)), ..self }
    }

    /// Masks secrets in a text.
    pub(crate) fn mask<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match &self.mask {
            Some(mask) => mask(text).into(),
            None => text.into(),
        }
    }

    /// Returns the variables for the program of a claim. A list in `env` names withheld variables to pass on.
    /// A map sets variables; null passes on the value of the caller.
    ///
    /// # Errors
    /// The finding for the claim: a named variable is not set (`unknown`), or `env` is malformed (`failed`).
    pub(crate) fn of_claim(&self, env: Option<&Value>) -> Result<Vec<(OsString, OsString)>, Finding> {
        let wrong = || Finding::failed("`env` is a list of names of variables");
        let none = Map::new();
        let (named, set): (Vec<&str>, &Map<String, Value>) = match env {
            None => (Vec::new(), &none),
            Some(Value::Array(names)) => {
                (names.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(wrong)?, &none)
            }
            Some(Value::Object(map)) => {
                let inherited = map.iter().filter(|(_, value)| value.is_null());
                (inherited.map(|(name, _)| name.as_str()).collect(), map)
            }
            Some(_) => return Err(wrong()),
        };
        let is_set = |name: &str| self.variables.iter().any(|(known, _)| known == name);
        if let Some(missing) = named.iter().find(|name| !is_set(name)) {
            return Err(Finding::unknown(format!("the variable `{missing}` in `env` is not set")));
        }
        let is_given = |name: &OsStr| {
            let is_named = named.iter().any(|wanted| *wanted == name);
            (is_named || !self.withheld.contains(name))
                && !set.iter().any(|(own, value)| own.as_str() == name && !value.is_null())
        };
        let mut variables: Vec<_> =
            self.variables.iter().filter(|(name, _)| is_given(name)).cloned().collect();
        for (name, value) in set.iter().filter(|(_, value)| !value.is_null()) {
            variables.push((name.into(), value.as_str().ok_or_else(wrong)?.into()));
        }
        Ok(variables)
    }
}
