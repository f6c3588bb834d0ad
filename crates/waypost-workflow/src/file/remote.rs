//! Kinds of evidence checked over a connection: database, container engine, HTTP.

use serde_json::Value;
use waypost_evidence::{API_RESPONSE, CONTAINER_RUNNING, DB_ROW, ENGINES, METHODS};

use super::about::About;
use super::evidence::{Expected, KindOfEvidence, keys};
use super::expectation::Wanted;
use super::fields::KeySet;

pub(super) static HTTP: KeySet = keys!(
    "`http` evidence": "http", "status", "method", "headers", "body", "json", "contains", "private";
);
pub(super) static CONTAINER: KeySet =
    keys!("`container` evidence": "container", "running", "healthy", "image", "engine";);
pub(super) static POSTGRES: KeySet =
    keys!("`postgres` evidence": "postgres", "table", "where", "values", "count", "query", "equals";);

/// Kinds checked over a connection.
pub(super) static REMOTE: [KindOfEvidence; 3] = [POSTGRES_KIND, CONTAINER_KIND, HTTP_KIND];

const POSTGRES_KIND: KindOfEvidence = KindOfEvidence {
    key: "postgres",
    recorded: DB_ROW,
    about: About::Database,
    set: &POSTGRES,
    expectations: &[
        ("table", Wanted::Text),
        ("where", Wanted::Columns),
        ("values", Wanted::Columns),
        ("count", Wanted::Count),
        ("query", Wanted::Query),
        ("equals", Wanted::Fit),
    ],
};

const CONTAINER_KIND: KindOfEvidence = KindOfEvidence {
    key: "container",
    recorded: CONTAINER_RUNNING,
    about: About::Container,
    set: &CONTAINER,
    expectations: &[
        ("running", Wanted::Truth),
        ("healthy", Wanted::Truth),
        ("image", Wanted::Fit),
        ("engine", Wanted::Word(&ENGINES)),
    ],
};

const HTTP_KIND: KindOfEvidence = KindOfEvidence {
    key: "http",
    recorded: API_RESPONSE,
    about: About::Url,
    set: &HTTP,
    expectations: &[
        ("status", Wanted::Status),
        ("method", Wanted::Word(&METHODS)),
        ("headers", Wanted::Headers),
        ("body", Wanted::Fit),
        ("json", Wanted::Paths),
        ("contains", Wanted::Texts),
        ("private", Wanted::Truth),
    ],
};

/// Returns the conflict between expectations, and the correction.
pub(super) fn incomplete(
    kind: &KindOfEvidence,
    found: &[(String, Expected)],
) -> Option<(&'static str, &'static str)> {
    let value = |name: &str| found.iter().find(|(known, _)| known == name).map(|(_, value)| value);
    let is = |name: &str, text: &str| matches!(value(name), Some(Expected::Plain(Value::String(found))) if found == text);
    let truth = |name: &str| match value(name) {
        Some(Expected::Plain(Value::Bool(truth))) => Some(*truth),
        _ => None,
    };
    let of_body = ["body", "json", "contains"].into_iter().any(|name| value(name).is_some());
    match kind.key {
        "http" if is("method", "HEAD") && of_body => Some((
            "a response to `HEAD` has no body",
            "remove `method: HEAD`, or the expectations of the body",
        )),
        "container" if truth("running") == Some(false) && truth("healthy") == Some(true) => {
            Some(("a stopped container is never healthy", "remove `running: false`, or `healthy`"))
        }
        _ => None,
    }
}
